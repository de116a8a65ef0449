"""Helpers that draw panels for the documents; the figures themselves are in the documents' modules."""
