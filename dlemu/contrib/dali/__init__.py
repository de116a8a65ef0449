"""The `dali` loader: reads by NVIDIA DALI. Imports the loaders' interfaces, and DALI where a batch is made."""
