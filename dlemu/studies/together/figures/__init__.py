"""Figures of jobs side by side, a file each: `ORDER` and `draw`."""
