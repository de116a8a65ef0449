"""Training: batches through a real loader, an emulated accelerator per rank, and how busy the storage kept them."""
