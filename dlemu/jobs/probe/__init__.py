"""What a storage can do before any training, measured by readers that do nothing else."""
