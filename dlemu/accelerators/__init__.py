"""What computes: a file here is a kind of accelerator, its name is what users write in `train.compute`."""
