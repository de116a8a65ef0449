"""Formats of a checkpoint's files: one module each, found by its name.

`checkpoint_format_base` says what its class `Format` does: sizes and literal bytes by arithmetic. Nothing is written
here.
"""
