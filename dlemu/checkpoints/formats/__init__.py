"""Formats of a checkpoint's files: one module each, found by its name."""
