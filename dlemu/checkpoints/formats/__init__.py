"""Formats of checkpoint files: one module for each value of `checkpoint.format`, with a class `Format`.

A format computes the layout of files: sizes, literal bytes and offsets of tensors. It does no I/O and no heavy imports.
"""
