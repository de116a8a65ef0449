"""Where files are: one module a backend, each with one class `Storage`; `storage_base` says what it does.

The only place that touches files of datasets and objects. May import nothing of dlemu.
"""
