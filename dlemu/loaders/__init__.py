"""Data loaders, which deliver batches: each module here is one; its name is a value of `reader.data_loader`.

`loader_base` defines the interface of a loader, `traits_base` the properties in which loaders differ. No other package
of dlemu imports torch or tensorflow, and this one does so only when a loader is made.
"""
