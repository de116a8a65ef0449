"""What a storage would keep busy, without running it: a model of loaders, accelerators and storage, calibrated once."""
