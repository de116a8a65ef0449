"""Step rows (a step of a rank each) as a `StepTable`: columns in the order of rank, epoch, block and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Made = TypeVar("Made")

LABELS = ("rank", "epoch", "phase", "block")
"""Columns with one value per block; a table is sorted by these and `step`."""


class StepTable:
    """Some rows of a result, in order. Values computed from a table can be cached in it; see `once`."""

    def __init__(self, columns: Mapping[str, Whole], places: NDArray[np.intp]) -> None:
        """Take the sorted columns of all rows, and the places of some of them; `table_of` sorts columns."""
        self._columns, self._places = columns, places
        self._once: dict[object, Any] = {}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, key: str) -> Whole: ...

    @overload
    def __getitem__(self, key: slice | NDArray[Any]) -> StepTable: ...

    def __getitem__(self, key: str | slice | NDArray[Any]) -> Whole | StepTable:
        """Return a column, read-only where it is not copied, or the rows in a slice or mask, or at places."""
        if isinstance(key, str):
            values: Whole = self._columns[key][self._range]
            return values
        return StepTable(self._columns, self._places[key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.void]:
        rows = np.empty(len(self), [(name, np.int64) for name in self._columns])
        for name in self._columns:
            rows[name] = self[name]
        return rows

    def once(self, make: Callable[[StepTable], Made]) -> Made:
        """Return `make(self)`, computed at the first call and cached in this table."""
        if make not in self._once:
            self._once[make] = make(self)
        made: Made = self._once[make]
        return made

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
        return [part for own in self.by_rank for part in own.by_epoch]

    @property
    def by_block(self) -> list[StepTable]:
        """The rows of each block of each rank, in order."""
        parts = np.split(self._places, self._block_starts[1:]) if len(self) else []
        return [StepTable(self._columns, part) for part in parts]

    def of(self, label: str, values: Sequence[int]) -> StepTable:
        """Return the rows whose `label` (rank, epoch, phase or block) is one of `values`."""
        chosen = np.isin(self[label], values)
        return self if chosen.all() else self[chosen]

    def values(self, label: str) -> list[int]:
        """Return the distinct ranks, epochs, phases or blocks in the table, sorted."""
        found: list[int] = np.unique(self[label][self._block_starts]).tolist()
        return found

    def trimmed(self, first: int, last: int) -> StepTable:
        """Return the table without the first `first` and the last `last` rows of each block of each rank."""
        sizes = np.diff(self._block_starts, append=len(self))
        number = np.arange(len(self)) - np.repeat(self._block_starts, sizes)  # within its block
        return self[(number >= first) & (number < np.repeat(sizes, sizes) - last)]

    def ends(self, *names: str) -> tuple[Whole, list[Whole], list[Whole]]:
        """Return for each block of each rank its rank, and the values of columns in its first and in its last row."""
        first, last = self._block_starts, np.append(self._block_starts[1:], len(self))[: len(self._block_starts)] - 1
        rank, *columns = (self._columns[name] for name in ("rank", *names))
        starts, stops = self._places[first], self._places[last]
        return rank[starts], [values[starts] for values in columns], [values[stops] for values in columns]

    @cached_property
    def _range(self) -> slice | NDArray[np.intp]:
        """Where the rows are in the columns: a slice, so that no column is copied, where they are consecutive."""
        places = self._places
        is_whole = (
            bool(len(places)) and places[-1] - places[0] == len(places) - 1 and bool((np.diff(places) == 1).all())
        )
        return slice(int(places[0]), int(places[-1]) + 1) if is_whole else places

    @cached_property
    def _block_starts(self) -> NDArray[np.intp]:
        """Index of the first row of each block of each rank."""
        differ = np.zeros(max(0, len(self) - 1), np.bool_)
        for name in LABELS:
            values = self[name]
            differ |= values[1:] != values[:-1]
        return np.flatnonzero(np.append(True, differ)[: len(self)])

    def _grouped(self, label: str) -> list[StepTable]:
        labels = self[label]
        order = np.argsort(labels, kind="stable")
        bounds = np.flatnonzero(np.diff(labels[order])) + 1
        if not len(bounds):
            return [self] if len(self) else []
        return [StepTable(self._columns, self._places[part]) for part in np.split(order, bounds)]


Rows = NDArray[np.void] | StepTable
"""Rows of STEP_DTYPE, shape (rows,), in any order; or a table of them."""


def table_of(columns: Mapping[str, Whole]) -> StepTable:
    """Return the table of all rows, each column of which has the shape (rows,); sorts them where they are not."""
    keys = np.stack([columns[name] for name in ("step", *reversed(LABELS))])
    order = np.lexsort(keys)
    if (np.diff(order) != 1).any():
        columns = {name: values[order] for name, values in columns.items()}
    columns = {name: values.view() for name, values in columns.items()}
    for values in columns.values():
        values.setflags(write=False)
    return StepTable(columns, np.arange(len(order)))


def in_order(rows: Rows) -> StepTable:
    """Return the rows as a table."""
    if isinstance(rows, StepTable):
        return rows
    return table_of({name: rows[name].astype(np.int64) for name in rows.dtype.names or ()})


def cached(compute: Callable[[StepTable], Made]) -> Callable[[Rows], Made]:
    """Decorate a function of a table: it takes any rows, and its value is cached in the table."""

    @wraps(compute)
    def once(rows: Rows) -> Made:
        return in_order(rows).once(compute)

    return once


def is_any(rows: Rows, name: str) -> bool:
    """Return whether a column has any value other than 0."""
    return bool(rows[name].any())


def sum_of(rows: Rows, name: str) -> int:
    """Return the sum of a column."""
    return int(rows[name].sum())


def began_ns(table: StepTable) -> Whole:
    """Return for each row when its rank's first step began, ns: the same moment on all ranks, by each one's clock."""
    ranks = table["rank"]
    firsts = np.flatnonzero(np.diff(ranks, prepend=-1))
    starts: Whole = np.repeat(np.minimum.reduceat(table["free_ns"], firsts), np.diff(firsts, append=len(ranks)))
    return starts


@dataclass(frozen=True, eq=False)
class Steps:
    """The distinct steps in a table, each done by one or more ranks, in the order of epochs, blocks and steps."""

    count: int
    of_row: NDArray[np.intp]
    """Index of each row's step, shape (rows,)."""

    def sum(self, values: Whole | int) -> Whole:
        """Return the sum over each step's rows."""
        totals = np.zeros(self.count, np.int64)
        np.add.at(totals, self.of_row, values)
        return totals

    def maximum(self, values: Whole) -> Whole:
        """Return the maximum over each step's rows; 0 where all are less."""
        maxima = np.zeros(self.count, np.int64)
        np.maximum.at(maxima, self.of_row, values)
        return maxima

    def first(self, *keys: Whole) -> NDArray[np.intp]:
        """Return the index of each step's row with the least keys, of which the first counts most."""
        order = np.lexsort((*reversed(keys), self.of_row))
        return order[np.searchsorted(self.of_row[order], np.arange(self.count))]


@cached
def steps_of(table: StepTable) -> Steps:
    """Return the steps that a table's rows belong to."""
    keys = np.stack([table[name] for name in ("epoch", "block", "step")])
    order = np.lexsort(keys[::-1])
    new = np.append(True, (np.diff(keys[:, order]) != 0).any(axis=0))[: len(table)]
    of_row = np.empty(len(table), np.intp)
    of_row[order] = np.cumsum(new) - 1
    return Steps(int(new.sum()), of_row)
