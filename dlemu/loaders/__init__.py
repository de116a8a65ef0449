"""The data loaders, which deliver batches: a file here is a loader; its name is the value of `reader.data_loader`.

`loader_base` defines the interface of a loader, `traits_base` the properties in which loaders differ. The only package
that imports torch and tensorflow, and only where a loader is made. May import plan, comm, settings and datagen.
"""
