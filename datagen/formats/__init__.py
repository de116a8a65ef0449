"""File formats: each module has one class `Format`, which writes and reads the files of one format.

`datagen.formats.format_base` defines the interface; to add a format, add a module to this folder.
"""
