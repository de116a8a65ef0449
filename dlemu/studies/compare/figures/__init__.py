"""Figures of a comparison: one figure, one file, each with `ORDER` and `draw`."""
