"""Settings of Parquet columns for MLCommons' fork of DLIO (3.0); no other release reads Parquet."""

from __future__ import annotations

from benchmarks.peer import PeerFailed
from datagen.spec import DatasetSpec

_MAX_MISSING = 0.5
"""Share of the bytes that may be missing: reading ahead at the end of runs differs."""


def peer_columns(spec: DatasetSpec) -> dict[str, int | str]:
    """Return DLIO's settings of section `dataset` for a workload's columns; none if it has no columns."""
    table = spec.parquet
    if not table.columns:
        return {}
    columns = (f"{{name: {column.name}, dtype: {column.dtype}, size: {column.size}}}" for column in table.columns)
    return {
        "parquet.columns": f"[{', '.join(columns)}]",
        "parquet.row_group_size": table.row_group_size,
        "record_length_bytes": spec.record_length_bytes,
    }


def peer_subset(spec: DatasetSpec) -> dict[str, int | str]:
    """Return DLIO's setting for reading only some of the columns; none if all are read."""
    read = [column.name for column in spec.parquet.columns if column.read]
    if len(read) == len(spec.parquet.columns):
        return {}
    return {"storage__storage_options__columns": f"[{', '.join(read)}]"}


def check_reading(read_gb: float, wanted_gb: float) -> None:
    """Raise PeerFailed if DLIO's later epochs read far less than they trained on: their rate says nothing.

    DLIO's workers live as long as the run, and keep the row groups that they have read.
    """
    if read_gb < (1 - _MAX_MISSING) * wanted_gb:
        raise PeerFailed(f"its further epochs trained on {wanted_gb:.2f} GB and read {max(read_gb, 0):.2f}")
