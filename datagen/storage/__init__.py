"""Where files are: one module a backend, each with one class `Storage`; `datagen.storage.base` says what it does."""
