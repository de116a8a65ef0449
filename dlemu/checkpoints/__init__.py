"""Checkpoints of a model: what they are made of, written through the storage and timed."""
