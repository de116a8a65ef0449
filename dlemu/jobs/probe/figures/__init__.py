"""Figures of a probe, one per file."""
