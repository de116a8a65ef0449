"""Columns of Parquet files as MLCommons' copy of DLIO (3.0) wants them described; no other release reads Parquet."""

from __future__ import annotations

from benchmarks.peer import PeerFailed
from datagen.spec import DatasetSpec

_MOST_LACKING = 0.5
"""Share of the bytes that may be missing: what the last epochs leave to read ahead differs."""


def peer_columns(spec: DatasetSpec) -> dict[str, int | str]:
    """Return its settings of section `dataset` for a workload's columns; none where it has no columns."""
    table = spec.parquet
    if not table.columns:
        return {}
    columns = (f"{{name: {one.name}, dtype: {one.dtype}, size: {one.size}}}" for one in table.columns)
    return {
        "parquet.columns": f"[{', '.join(columns)}]",
        "parquet.row_group_size": table.row_group_size,
        "record_length_bytes": spec.record_length_bytes,
    }


def peer_subset(spec: DatasetSpec) -> dict[str, int | str]:
    """Return its setting for reading some of the columns; none where all are read."""
    read = [one.name for one in spec.parquet.columns if one.read]
    if len(read) == len(spec.parquet.columns):
        return {}
    return {"storage__storage_options__columns": f"[{', '.join(read)}]"}


def check_reading(read_gb: float, wanted_gb: float) -> None:
    """Raise PeerFailed where its further epochs read far less than they trained: steps without reading have no rate.

    Its workers live as long as the run, and look a row group up among those they have read before.
    """
    if read_gb < (1 - _MOST_LACKING) * wanted_gb:
        raise PeerFailed(f"its further epochs trained on {wanted_gb:.2f} GB and read {max(read_gb, 0):.2f}")
