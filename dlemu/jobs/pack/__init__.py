"""Packing: processes that read, rescale and write at the same time, watched and judged."""
