"""Figures of a saved audit: each file draws one from an `Audit`."""
