"""Packing: turns many small image files into few large files, each with many images, and resizes the images if wanted.

Chooses, resizes and checks the images; dlemu.jobs.pack starts the processes. May import formats and storage, not dlemu.
"""
