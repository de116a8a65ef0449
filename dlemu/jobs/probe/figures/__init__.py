"""Figures of a probe, one a file."""
