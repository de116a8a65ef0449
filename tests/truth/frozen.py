"""The frozen runs: runs/KIND.json has the settings, facts and numbers of each, tables/ the rows of all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

HERE = Path(__file__).parent
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class FrozenRun:
    """One run, or a judgement of other runs."""

    name: str
    kind: str
    """`train`, `checkpoint`, `kvcache`, `pack` or `probe`; of judgements `predict`, `size` or `compare`."""
    settings: dict[str, Any]
    """The settings that are not the defaults, by their keys on the command line."""
    facts: dict[str, Any]
    """What was known of the run besides its rows, with units in the names."""
    numbers: dict[str, Any]
    """What was computed of it."""
    of: tuple[str, ...]
    """The runs that a judgement is about."""

    def rows(self, table: str) -> Columns:
        """Return the rows that the run has in a table, column by column."""
        whole, runs = _table(table)
        first, count = runs.get(self.name, (0, 0))
        part = whole.slice(first, count)
        return {name: np.asarray(part[name].to_numpy()) for name in part.column_names}


def names() -> list[str]:
    return list(_runs())


def read(name: str) -> FrozenRun:
    kind, values = _runs()[name]
    return FrozenRun(
        name=name,
        kind=kind,
        settings=values.get("settings", {}),
        facts=values.get("facts", {}),
        numbers=values["numbers"],
        of=tuple(values.get("of", ())),
    )


@cache
def _runs() -> dict[str, tuple[str, dict[str, Any]]]:
    paths = sorted((HERE / "runs").glob("*.json"))
    by_kind = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return {name: (kind, values) for kind, runs in by_kind.items() for name, values in runs.items()}


@cache
def _table(name: str) -> tuple[pa.Table, dict[str, tuple[int, int]]]:
    """Return a table without its column `run`, and where the rows of each run begin and how many there are."""
    table = pq.read_table(HERE / "tables" / f"{name}.parquet")
    column = table["run"].cast(pa.string())
    counts = {str(part["values"]): int(part["counts"].as_py()) for part in pc.value_counts(column)}
    runs, first = {}, 0
    for run in pc.unique(column).to_pylist():
        runs[run] = first, counts[run]
        first += counts[run]
    return table.drop_columns(["run"]), runs
