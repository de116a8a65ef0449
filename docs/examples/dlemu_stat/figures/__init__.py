"""Figures on the page of a run of stat calls: none yet."""
