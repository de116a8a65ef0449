"""Figures of a run of checkpoints: one module each, found by its name."""
