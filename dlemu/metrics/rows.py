"""Step rows (a step of a rank each) as a `StepTable`: columns, sorted, with an index by rank, epoch and block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Made = TypeVar("Made")

LABELS = ("rank", "epoch", "phase", "block")
"""Columns with one value per block; a table is sorted by these and `step`."""
_CHUNK = 1 << 16
"""Rows per chunk of work: larger ones exceed the CPU caches, and malloc would map and unmap their memory each time."""
_SHORT_SPAN = 256
"""If runs of consecutive rows are shorter on average, rows are gathered by index instead of copied run by run."""


class Columns(Protocol):
    """Rows of which only columns are used: a structured array or a StepTable."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


class ColumnStore:
    """All rows of a result as columns, sorted by rank, epoch, phase, block and step."""

    def __init__(self, columns: Mapping[str, Whole]) -> None:
        """Sort the columns where they are not in order."""
        keys = [columns[name] for name in ("step", *reversed(LABELS))]
        if not _are_in_order(keys):
            order = np.lexsort(keys)
            columns = {name: values[order] for name, values in columns.items()}
        self._columns = {name: values.view() for name, values in columns.items()}
        for values in self._columns.values():
            values.setflags(write=False)
        self.names, self.length = tuple(columns), len(keys[0])
        differ = np.zeros(max(0, self.length - 1), np.bool_)
        for name in LABELS:
            differ |= columns[name][1:] != columns[name][:-1]
        self.block_starts: NDArray[np.int64] = np.append(True, differ)[: self.length].nonzero()[0]
        self.block_stops = np.append(self.block_starts[1:], self.length)[: len(self.block_starts)]
        self.labels = {name: self.at(name, self.block_starts) for name in LABELS}

    def part(self, name: str, start: int, stop: int) -> Whole:
        """Return the values of a range of rows, read-only."""
        values: Whole = self._columns[name][start:stop]
        return values

    def at(self, name: str, indices: NDArray[np.integer]) -> Whole:
        """Return the values of the rows at `indices`."""
        values: Whole = self._columns[name][indices]
        return values


def _are_in_order(keys: Sequence[Whole]) -> bool:
    """Return whether rows are sorted by these columns, of which the last one counts most."""
    in_order = np.ones(max(0, len(keys[0]) - 1), np.bool_)
    for values in keys:
        in_order = (values[1:] > values[:-1]) | ((values[1:] == values[:-1]) & in_order)
    return bool(in_order.all())


class StepTable:
    """Some rows of a store, in its order. Values computed from a table can be cached in it; see `once`."""

    def __init__(self, store: ColumnStore, pieces: tuple[Whole, Whole] | None = None) -> None:
        """Take all rows of a store, or `pieces`: begins and ends of row ranges, each within one block."""
        self._store = store
        if pieces is None:
            pieces = store.block_starts, store.block_stops
        self._starts, self._stops = pieces
        self._length = int((self._stops - self._starts).sum())
        self._once: dict[object, Any] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: str) -> Whole: ...

    @overload
    def __getitem__(self, key: slice | NDArray[np.bool_]) -> StepTable: ...

    def __getitem__(self, key: str | slice | NDArray[np.bool_]) -> Whole | StepTable:
        """Return a column, read-only, or a table of the rows in a slice or mask."""
        if isinstance(key, str):
            return self._column(key)
        if not isinstance(key, slice):
            return self._where(np.asarray(key))
        start, stop, step = key.indices(len(self))
        if step == 1:
            return self._cut(start, max(start, stop))
        mask = np.zeros(len(self), np.bool_)
        mask[key] = True
        return self._where(mask)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.void]:
        rows = np.empty(len(self), [(name, np.int64) for name in self._store.names])
        for name in self._store.names:
            rows[name] = self[name]
        return rows

    def once(self, make: Callable[[StepTable], Made]) -> Made:
        """Return `make(self)`, computed at the first call and cached in this table."""
        if make not in self._once:
            self._once[make] = make(self)
        made: Made = self._once[make]
        return made

    def take(self, indices: NDArray[np.integer]) -> Columns:
        """Return the rows at `indices`, in that order, without materialising columns of all rows."""
        ends = np.cumsum(self._stops - self._starts)
        piece = np.searchsorted(ends, indices, side="right")
        return _Taken(self._store, indices + (self._stops - ends)[piece])

    @cached_property
    def by_rank(self) -> list[StepTable]:
        """The rows of each rank, in the order of ranks."""
        return list(self._grouped("rank").values())

    @cached_property
    def by_epoch(self) -> list[StepTable]:
        """The rows of each epoch, in the order of epochs."""
        return list(self._grouped("epoch").values())

    @cached_property
    def by_rank_and_epoch(self) -> list[StepTable]:
        """The rows of each epoch of each rank, in the order in which a large result has them in memory."""
        return [part for own in self.by_rank for part in own.by_epoch]

    @cached_property
    def by_block(self) -> list[StepTable]:
        """The rows of each block of each rank, in order."""
        if not len(self._starts):
            return []
        bounds = np.flatnonzero(np.diff(self._blocks)) + 1
        parts = zip(np.split(self._starts, bounds), np.split(self._stops, bounds), strict=True)
        return [StepTable(self._store, pieces) for pieces in parts]

    def of(self, label: str, values: Sequence[int]) -> StepTable:
        """Return the rows whose `label` (rank, epoch, phase or block) is one of `values`."""
        return self._chosen(np.isin(self.label(label), values))

    def label(self, name: str) -> Whole:
        """Return the rank, epoch, phase or block of each piece of the table, in order; values may repeat."""
        return self._store.labels[name][self._blocks]

    def values(self, label: str) -> list[int]:
        """Return the distinct ranks, epochs, phases or blocks in the table, sorted."""
        found: list[int] = np.unique(self.label(label)).tolist()
        return found

    def trimmed(self, first: int, last: int) -> StepTable:
        """Return the table without the first `first` and the last `last` rows of each block of each rank."""
        numbers, lengths = self._blocks, self._stops - self._starts
        if len(np.unique(numbers)) == len(numbers):
            starts, stops = self._starts + first, self._stops - last
            remaining = stops > starts
            return StepTable(self._store, (starts[remaining], stops[remaining]))
        begins = np.flatnonzero(np.append(True, np.diff(numbers) != 0))
        sizes = np.add.reduceat(lengths, begins)
        number = np.arange(len(self)) - np.repeat(np.append(0, np.cumsum(sizes)[:-1]), sizes)  # within its block
        return self._where((number >= first) & (number < np.repeat(sizes, sizes) - last))

    def ends(self, *names: str) -> tuple[Whole, list[Whole], list[Whole]]:
        """Return for each block of each rank its rank, and the values of columns in its first and in its last row."""
        begins = np.flatnonzero(np.append(True, np.diff(self._blocks) != 0))[: len(self._starts)]
        closes = np.append(begins[1:], len(self._starts))[: len(begins)] - 1
        first, last = (
            [self._store.at(name, rows) for name in names] for rows in (self._starts[begins], self._stops[closes] - 1)
        )
        return self.label("rank")[begins], first, last

    @cached_property
    def _blocks(self) -> NDArray[np.intp]:
        """Index of each piece's block in the store."""
        return np.searchsorted(self._store.block_starts, self._starts, side="right") - 1

    def _grouped(self, label: str) -> dict[int, StepTable]:
        labels = self.label(label)
        values = np.unique(labels)
        if len(values) == 1:
            return {int(values[0]): self}
        order = np.argsort(labels, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []
        return {int(labels[part[0]]): StepTable(self._store, (self._starts[part], self._stops[part])) for part in parts}

    def _chosen(self, chosen: NDArray[np.bool_]) -> StepTable:
        return self if chosen.all() else StepTable(self._store, (self._starts[chosen], self._stops[chosen]))

    def _cut(self, start: int, stop: int) -> StepTable:
        ends = np.cumsum(self._stops - self._starts)
        before = np.clip(start - (ends - (self._stops - self._starts)), 0, None)
        behind = np.clip(ends - stop, 0, None)
        starts, stops = self._starts + before, self._stops - behind
        remaining = stops > starts
        return StepTable(self._store, (starts[remaining], stops[remaining]))

    def _where(self, mask: NDArray[np.bool_]) -> StepTable:
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise IndexError(f"rows are chosen by a slice or a mask of {len(self)} values")
        if mask.all():
            return self
        ends = np.cumsum(self._stops - self._starts)
        own_starts = ends - (self._stops - self._starts)
        edges = np.unique(np.concatenate([own_starts, np.flatnonzero(mask[1:] != mask[:-1]) + 1, [len(mask)]]))
        starts = edges[:-1]
        chosen = mask[starts]
        starts, stops = starts[chosen], edges[1:][chosen]
        piece = np.searchsorted(ends, starts, side="right")
        shift = self._starts[piece] - own_starts[piece]
        return StepTable(self._store, (starts + shift, stops + shift))

    def _column(self, name: str) -> Whole:
        if not len(self):
            return np.empty(0, np.int64)
        begins, stops = self._spans
        if len(begins) == 1:
            return self._store.part(name, int(begins[0]), int(stops[0]))
        if len(begins) * _SHORT_SPAN > len(self):
            lengths = stops - begins
            indices = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(len(self))
            return self._store.at(name, indices)
        spans = zip(begins.tolist(), stops.tolist(), strict=True)
        return np.concatenate([self._store.part(name, *span) for span in spans])

    @cached_property
    def _spans(self) -> tuple[Whole, Whole]:
        """Begins and ends of the pieces, with adjacent ones merged."""
        apart = self._starts[1:] != self._stops[:-1]
        return self._starts[np.append(True, apart)], self._stops[np.append(apart, True)]


class _Taken:
    """Rows of a store by index; see `StepTable.take`."""

    def __init__(self, store: ColumnStore, indices: NDArray[np.integer]) -> None:
        self._store, self._indices = store, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, name: str) -> Whole:
        return self._store.at(name, self._indices)


Rows = NDArray[np.void] | StepTable
"""Rows of STEP_DTYPE, shape (rows,), in any order; or a table of them."""


def in_order(rows: Rows) -> StepTable:
    """Return the rows as a table."""
    if isinstance(rows, StepTable):
        return rows
    return StepTable(ColumnStore({name: rows[name].astype(np.int64) for name in rows.dtype.names or ()}))


def is_any(rows: Columns, name: str) -> bool:
    """Return whether a column has any value other than 0, without materialising all of it."""
    return any(bool(part[name].any()) for part in (chunks(rows) if isinstance(rows, StepTable) else (rows,)))


def sum_of(rows: Rows, name: str) -> int:
    """Return the sum of a column."""
    return int(rows[name].sum())


@dataclass(frozen=True, eq=False)
class Steps:
    """The distinct steps in a table, each done by one or more ranks, in the order of epochs, blocks and steps."""

    count: int
    keys: tuple[Whole, Whole, Whole]
    """Epoch, block and number of each step."""
    parts: tuple[tuple[int, StepTable, NDArray[np.intp] | slice], ...]
    """For each rank: index of its first row in the table, its rows, and the index in `keys` of each row's step."""


def steps_of(table: StepTable) -> Steps:
    """Return the steps that a table's rows belong to."""
    return table.once(_steps_of)


def _steps_of(table: StepTable) -> Steps:
    ranks = table.by_rank
    if not ranks:
        nothing = np.empty(0, np.int64)
        return Steps(0, (nothing, nothing, nothing), ())
    keys = _keys(ranks[0])
    differing: list[tuple[Whole, ...] | None] = []  # keys of each rank; None if equal to those of the first
    for part in ranks:
        own = _keys(part)
        same = len(own[0]) == len(keys[0]) and all(np.array_equal(*pair) for pair in zip(own, keys, strict=True))
        differing.append(None if same else own)
    firsts = np.append(0, np.cumsum([len(part) for part in ranks])[:-1]).tolist()
    if all(own is None for own in differing):
        whole = slice(0, len(keys[0]))
        return Steps(len(keys[0]), keys, tuple((first, part, whole) for first, part in zip(firsts, ranks, strict=True)))
    every = np.concatenate([np.stack(keys if own is None else own) for own in differing], axis=1)
    order = np.lexsort(every[::-1])
    ordered = every[:, order]
    new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))
    number = np.empty(len(order), np.intp)
    number[order] = np.cumsum(new) - 1
    found = ordered[:, new]
    parts = tuple((first, part, number[first : first + len(part)]) for first, part in zip(firsts, ranks, strict=True))
    return Steps(found.shape[1], (found[0], found[1], found[2]), parts)


def add_at(totals: Whole, steps: NDArray[np.intp] | slice, values: Whole | int) -> None:
    """Add the values of one rank's rows to the totals of their `steps`, in which a step may occur more than once."""
    if isinstance(steps, slice):
        totals[steps] += values
    else:
        np.add.at(totals, steps, values)


def maximum_at(maxima: Whole, steps: NDArray[np.intp] | slice, values: Whole) -> None:
    """Update the maxima of `steps` with the values of one rank's rows."""
    if isinstance(steps, slice):
        np.maximum(maxima[steps], values, out=maxima[steps])
    else:
        np.maximum.at(maxima, steps, values)


def _keys(part: StepTable) -> tuple[Whole, Whole, Whole]:
    return part["epoch"], part["block"], part["step"]


def filled(parts: Iterable[NDArray[Any]], length: int, dtype: type = np.int64) -> NDArray[Any]:
    """Return parts of an array, `length` values in all, as one, and keep only one of them at a time."""
    values: NDArray[Any] = np.empty(length, dtype)
    at = 0
    for part in parts:
        values[at : at + len(part)] = part
        at += len(part)
    return values


def chunks(table: StepTable, max_rows: int = _CHUNK) -> Iterator[StepTable]:
    """Yield all rows, rank by rank and at most `max_rows` at a time, so that temporary arrays stay small."""
    for part in table.by_rank:
        if len(part) <= max_rows:
            yield part
            continue
        for start in range(0, len(part), max_rows):
            yield part[start : start + max_rows]
