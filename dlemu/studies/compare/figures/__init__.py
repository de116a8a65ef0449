"""Figures of two storages beside each other: one figure, one file, as in `figures`."""
