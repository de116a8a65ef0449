"""Packing: many small files of one image each become few large ones, the images rescaled on the way.

What is read, rescaled and written, for whoever starts the processes. May import formats and storage, nothing of dlemu.
"""
