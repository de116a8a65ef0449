"""Figures of a recorded job, a file each: `ORDER` and `draw`."""
