"""What files look like: one module a format, each with one class `Format` that writes and reads it.

`datagen.formats.format_base` says what such a class does; a new file in this folder is all that a new format needs.
"""
