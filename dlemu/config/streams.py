"""Which loaders have a framework's own readers, and which of these read files as streams, in an order of their own."""

from __future__ import annotations

DALI_FORMATS = ("jpeg", "npy", "png", "tfrecord")
"""What DALI has readers for."""
DALI_ODIRECT = ("npy", "tfrecord")
"""Formats that it can read past the page cache."""


def reads_streams(data_loader: str, dataset_format: str) -> bool:
    """Say whether a loader reads a format by a framework's record reader, which can't seek to a sample."""
    return data_loader in ("tensorflow", "dali") and dataset_format == "tfrecord"


def reads_itself(data_loader: str, dataset_format: str) -> bool:
    """Say whether files are read by the loader's framework, not by dlemu."""
    return data_loader == "dali" or reads_streams(data_loader, dataset_format)


def dali_depths(prefetch_size: int) -> tuple[int, int]:
    """Return the batches that a DALI reader, and the pipeline behind it, have ready or under way.

    DLIO's mapping: `prefetch_size` for each, and DALI's own 1 and 2 where it is 0.
    """
    return (prefetch_size, prefetch_size) if prefetch_size > 0 else (1, 2)
