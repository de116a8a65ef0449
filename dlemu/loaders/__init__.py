"""The streams of batches: a file here is a loader, its name is what users write in `reader.data_loader`.

`loader_base` says what a loader does, `traits_base` what is different of it. The only place that imports torch and
tensorflow, where they are used. May import plan, comm, settings and datagen.
"""
