"""Figures of an audit: a file each, drawn from an `Audit`."""
