"""Figures of jobs beside each other, a file each: `ORDER` and `draw`."""
