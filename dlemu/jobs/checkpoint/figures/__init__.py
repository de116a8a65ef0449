"""Figures on the page of a checkpoint run: one module each, with a function `draw`; all in this folder are drawn."""
