"""Checkpoints: a model's files written, read and timed by all ranks."""
