"""Where files are: one module a backend, each with one class `Storage`; `storage_base` says what it does."""
