"""Data loaders, which deliver batches: each module here is one; its name is a value of `reader.data_loader`.

`loader_base` defines the interface of a loader, `traits_base` the properties in which loaders differ. torch and
tensorflow are imported only when their loader is made.
"""
