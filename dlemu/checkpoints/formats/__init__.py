"""Formats of checkpoint files: one module each, named after its value of `checkpoint.format`, with a class `Format`.

A format computes the layout of its files (sizes, literal bytes, offsets of tensors) and writes nothing.
"""
