"""Storage backends (local files, S3, fsspec, ...): one module each, with a class `Storage` as `storage_base` defines.

All reads and writes of datasets, on file systems and object stores, go through this package. It never imports dlemu.
"""
