"""Figures of a prediction, one a file."""
