"""Figures of two storages side by side: one figure, one file, as in `figures`."""
