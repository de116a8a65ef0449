"""Which loaders read files as streams, record after record, in an order of their own."""

from __future__ import annotations


def reads_streams(data_loader: str, dataset_format: str) -> bool:
    """Say whether a loader reads a format by TensorFlow's own record reader, which can't seek to a sample."""
    return data_loader == "tensorflow" and dataset_format == "tfrecord"
