"""Packing: many small files of one image each become few large ones, the images rescaled on the way."""
