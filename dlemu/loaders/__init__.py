"""The streams of batches: a file here is a loader, its name is what users write in `reader.data_loader`."""
