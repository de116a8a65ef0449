"""Tables of step rows, one row per rank and step, that can be split by rank, epoch, block and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
T = TypeVar("T")

LABELS = ("rank", "epoch", "phase", "block")
"""The columns that identify a block of a rank: its steps until a checkpoint, an evaluation or the end of the epoch."""


class StepTable:
    """Some rows of a run, sorted by `LABELS` and `step`: indices into the run's columns, which all its tables share.

    `cache` holds the results of functions decorated with `cached`.
    """

    def __init__(self, columns: Mapping[str, Ints], indices: NDArray[np.intp]) -> None:
        """Take the columns of the run, sorted as by `table_of`, and the indices of the table's rows."""
        self._columns, self._indices = columns, indices
        self.cache: dict[object, Any] = {}

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, key: str) -> Ints: ...

    @overload
    def __getitem__(self, key: slice | NDArray[Any]) -> StepTable: ...

    def __getitem__(self, key: str | slice | NDArray[Any]) -> Ints | StepTable:
        """Return a column, read-only unless copied; or, by a slice, mask or indices, a table of fewer rows."""
        if isinstance(key, str):
            return np.asarray(self._columns[key][self._selection])
        return StepTable(self._columns, self._indices[key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.void]:
        """Return the rows as a structured array for `np.asarray(table)`: a copy of int64 fields; ignores arguments."""
        rows = np.empty(len(self), [(name, np.int64) for name in self._columns])
        for name in self._columns:
            rows[name] = self[name]
        return rows

    @cached_property
    def by_rank(self) -> list[StepTable]:
        """The rows of each rank, in the order of ranks."""
        return self._grouped("rank")

    @cached_property
    def by_epoch(self) -> list[StepTable]:
        """The rows of each epoch, in the order of epochs."""
        return self._grouped("epoch")

    @property
    def by_rank_and_epoch(self) -> list[StepTable]:
        """The rows of each epoch of each rank."""
        return [epoch for rank in self.by_rank for epoch in rank.by_epoch]

    @property
    def by_block(self) -> list[StepTable]:
        """The rows of each block of each rank, in order."""
        if not len(self):
            return []
        return [StepTable(self._columns, block) for block in np.split(self._indices, self.block_start_indices[1:])]

    def of(self, label: str, values: Sequence[int]) -> StepTable:
        """Return the rows in which `label` (rank, epoch, phase or block) has one of the `values`."""
        is_selected = np.isin(self[label], values)
        return self if is_selected.all() else self[is_selected]

    def values(self, label: str) -> list[int]:
        """Return the distinct ranks, epochs, phases or blocks in the table, sorted."""
        return [int(value) for value in np.unique(self[label][self.block_start_indices])]

    @cached_property
    def block_start_indices(self) -> NDArray[np.intp]:
        """Indices in the table of the first row of each block of each rank."""
        is_start = np.zeros(len(self), np.bool_)
        is_start[:1] = True
        for name in LABELS:
            values = self[name]
            is_start[1:] |= values[1:] != values[:-1]
        return np.flatnonzero(is_start)

    @property
    def block_ends(self) -> tuple[StepTable, StepTable]:
        """The first and the last row of each block of each rank."""
        last = np.append(self.block_start_indices, len(self))[1:] - 1
        return self[self.block_start_indices], self[last]

    @cached_property
    def _selection(self) -> slice | NDArray[np.intp]:
        """The indices; as a slice if they are consecutive, because a slice of a column is not a copy."""
        indices = self._indices
        if not len(indices) or (np.diff(indices) != 1).any():
            return indices
        return slice(int(indices[0]), int(indices[-1]) + 1)

    def _grouped(self, label: str) -> list[StepTable]:
        """Return a table for each value of `label`, by ascending value."""
        labels = self[label]
        order = np.argsort(labels, kind="stable")
        bounds = np.flatnonzero(np.diff(labels[order])) + 1
        if not len(bounds):
            return [self] if len(self) else []
        return [StepTable(self._columns, self._indices[group]) for group in np.split(order, bounds)]


Rows = NDArray[np.void] | StepTable
"""Rows of STEP_DTYPE, shape (rows,) and in any order, or a table of them."""


def table_of(columns: Mapping[str, Ints]) -> StepTable:
    """Return a sorted table of columns of shape (rows,); does not change the columns."""
    order = np.lexsort([columns[name] for name in ("step", *reversed(LABELS))])  # the last key is the primary one
    if (np.diff(order) != 1).any():
        columns = {name: values[order] for name, values in columns.items()}
    columns = {name: values.view() for name, values in columns.items()}
    for values in columns.values():
        values.setflags(write=False)
    return StepTable(columns, np.arange(len(order)))


def as_table(rows: Rows) -> StepTable:
    """Return the rows as a sorted table."""
    if isinstance(rows, StepTable):
        return rows
    return table_of({name: rows[name].astype(np.int64) for name in rows.dtype.names or ()})


def cached(compute: Callable[[StepTable], T]) -> Callable[[StepTable], T]:
    """Make a function compute its result once per table, and keep it in the table's `cache`."""

    @wraps(compute)
    def cached_compute(table: StepTable) -> T:
        if compute not in table.cache:
            table.cache[compute] = compute(table)
        result: T = table.cache[compute]
        return result

    return cached_compute


def has_nonzero(rows: Rows, name: str) -> bool:
    """Return whether a column has a value other than 0; a column that was not measured is 0 in all rows."""
    return bool(rows[name].any())


def sum_of(rows: Rows, name: str) -> int:
    return int(rows[name].sum())


def training_start_ns(table: StepTable) -> Ints:
    """Return for each row when its rank's first step began, by the clock of that rank, ns."""
    ranks = table["rank"]  # sorted, because the table is
    rank_starts = np.flatnonzero(np.diff(ranks, prepend=-1))
    return np.repeat(np.minimum.reduceat(table["free_ns"], rank_starts), np.diff(rank_starts, append=len(ranks)))


def step_end_ns(rows: Rows) -> Ints:
    """Return when each row's step was over on all accelerators, ns."""
    return np.asarray(rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"])


@dataclass(frozen=True, eq=False)
class Steps:
    """The distinct steps in a table, in order. The methods take one value per row, and return one per step."""

    count: int
    step_of_row: NDArray[np.intp]
    """Index of the step of each row, shape (rows,)."""
    row_counts: Ints
    """Number of rows of each step, shape (count,)."""

    def sum(self, values: Ints) -> Ints:
        """Return the sum of `values` over the rows of each step."""
        totals = np.zeros(self.count, np.int64)
        np.add.at(totals, self.step_of_row, values)
        return totals

    def maximum(self, values: Ints) -> Ints:
        """Return the maximum of `values` over the rows of each step, at least 0."""
        maxima = np.zeros(self.count, np.int64)
        np.maximum.at(maxima, self.step_of_row, values)
        return maxima

    def argmin(self, *keys: Ints) -> NDArray[np.intp]:
        """Return the index of the row with the smallest key in each step; later keys decide between equal ones."""
        order = np.lexsort((*reversed(keys), self.step_of_row))
        return order[np.searchsorted(self.step_of_row[order], np.arange(self.count))]


@cached
def steps_of(table: StepTable) -> Steps:
    keys = np.stack([table[name] for name in ("epoch", "block", "step")])
    order = np.lexsort(keys[::-1])  # rows by epoch, block and step
    is_first_row = np.ones(len(table), np.bool_)
    is_first_row[1:] = (np.diff(keys[:, order]) != 0).any(axis=0)
    step_of_row = np.empty(len(table), np.intp)
    step_of_row[order] = np.cumsum(is_first_row) - 1
    return Steps(int(is_first_row.sum()), step_of_row, np.bincount(step_of_row).astype(np.int64))
