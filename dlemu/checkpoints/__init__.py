"""Model checkpoints: the files they consist of, and how ranks write, read, time and verify these files."""
