"""Figures of a prediction, one per file."""
