"""Step rows as a sorted table of columns: computes metrics of 1e7 steps in little memory and time.

A step row has the measurements of one step of one rank. `in_order` returns the rows of one or more ranks as a
`StepTable`. Columns are loaded on demand, cached in the narrowest integer type that fits, and evicted when others are
needed, so a computation that uses a few columns, or goes rank by rank, never has all of a large result in memory. A
table has an index of its blocks (a rank's steps between two checkpoints or evaluations), so that the rows of a rank or
an epoch are found without scanning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Made = TypeVar("Made")

LABELS = ("rank", "epoch", "phase", "block")
"""Columns with one value per block; a table is sorted by these and `step`."""
STAMPS = ("asked_ns", "got_ns", "slept_ns", "met_ns", "ready_ns", "started_ns", "finished_ns")
"""Timestamps of a step, stored as the offset from its `free_ns` (end of the previous step), which is small."""
MAX_CACHED_BYTES = 448 << 20
"""Size of a store's cache of columns."""
GROUP_ROWS = 1 << 20
"""Rows per group: a column is loaded, and stored in a narrow type, group by group."""
_CHUNK = 1 << 16
"""Rows per chunk of work: larger ones exceed the CPU caches, and malloc would map and unmap their memory each time."""
_SHORT_SPAN = 256
"""If runs of consecutive rows are shorter on average, rows are gathered by index instead of copied run by run."""


class Columns(Protocol):
    """Rows of which only columns are used: a structured array or a StepTable."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class _Narrow:
    """Integers, stored as offsets from their minimum in the narrowest type that fits."""

    minimum: int
    offsets: NDArray[Any] | None
    """Each value minus `minimum`; None if all values are equal."""
    length: int
    """Number of values."""

    @property
    def cached_bytes(self) -> int:
        return 0 if self.offsets is None else self.offsets.nbytes

    def part(self, start: int, stop: int) -> Whole:
        if self.offsets is None:
            equal: Whole = np.broadcast_to(np.int64(self.minimum), max(0, min(stop, self.length) - start))
            return equal
        offsets = self.offsets[start:stop]
        values: Whole = offsets if offsets.dtype == np.int64 else np.add(offsets, self.minimum, dtype=np.int64)
        return values

    def put(self, out: Whole, start: int) -> None:
        """Fill `out` with the values from index `start` on."""
        if self.offsets is None:
            out[:] = self.minimum
        else:
            np.add(self.offsets[start : start + len(out)], self.minimum, out=out, dtype=np.int64)

    def at(self, indices: NDArray[np.integer]) -> Whole:
        if self.offsets is None:
            return np.full(len(indices), self.minimum)
        values: Whole = self.offsets[indices].astype(np.int64) + self.minimum  # int64 offsets have a minimum of 0
        return values

    def total(self, start: int, stop: int) -> int:
        count = max(0, min(stop, self.length) - start)
        return self.minimum * count + (0 if self.offsets is None else int(self.offsets[start:stop].sum(dtype=np.int64)))


def _narrowed(values: Whole) -> _Narrow:
    if not len(values):
        return _Narrow(0, None, 0)
    minimum, maximum = int(values.min()), int(values.max())
    if minimum == maximum:
        return _Narrow(minimum, None, len(values))
    types = (np.uint8, np.uint16, np.uint32)
    narrow = next((narrow for narrow in types if maximum - minimum <= np.iinfo(narrow).max), None)
    if narrow is None:
        return _Narrow(0, np.array(values), len(values))
    offsets = np.empty(len(values), narrow)
    np.subtract(values, minimum, out=offsets, casting="unsafe")  # NumPy casts in blocks that stay in the CPU cache
    return _Narrow(minimum, offsets, len(values))


class _Column:
    """A column, stored in groups of rows."""

    def __init__(self, begins: Whole, groups: list[_Narrow]) -> None:
        self._begins, self._groups = begins, groups
        self.cached_bytes = sum(group.cached_bytes for group in groups)

    def part(self, start: int, stop: int) -> Whole:
        parts = list(self._within(start, stop))
        if len(parts) == 1:
            group, first, last = parts[0]
            return group.part(first, last)
        values, at = np.empty(sum(last - first for _, first, last in parts), np.int64), 0
        for group, first, last in parts:
            group.put(values[at : at + last - first], first)
            at += last - first
        return values

    def at(self, indices: NDArray[np.integer]) -> Whole:
        if len(self._groups) == 1:
            return self._groups[0].at(indices)
        values, numbers = np.empty(len(indices), np.int64), np.searchsorted(self._begins, indices, side="right") - 1
        for number in np.unique(numbers).tolist():
            in_group = numbers == number
            values[in_group] = self._groups[number].at(indices[in_group] - self._begins[number])
        return values

    def total(self, start: int, stop: int) -> int:
        return sum(group.total(first, last) for group, first, last in self._within(start, stop))

    def _within(self, start: int, stop: int) -> Iterator[tuple[_Narrow, int, int]]:
        """Yield the groups with rows from `start` up to `stop`, each with the begin and end of these rows within it."""
        number = int(np.searchsorted(self._begins, start, side="right")) - 1
        while start < stop:
            begin, group = int(self._begins[number]), self._groups[number]
            last = min(stop - begin, group.length)
            if last > start - begin:
                yield group, start - begin, last
            start, number = begin + group.length, number + 1


class ColumnStore:
    """All rows of a result, sorted by rank, epoch, phase, block and step, with a cache of columns."""

    def __init__(self, names: Sequence[str], groups: Sequence[int], load: Callable[[str, int], Whole]) -> None:
        """`groups`: number of rows in each; `load(name, group)` returns a column of one, and may be called again."""
        self.names, self.length, self._load = tuple(names), sum(groups), load
        self._begins = np.cumsum([0, *groups])[:-1]
        self._cache: OrderedDict[str, _Column] = OrderedDict()
        self._order: NDArray[np.intp] | None = None
        changes = self._changes()
        if changes is None:
            keys = [self._column(name).part(0, self.length) for name in ("step", "block", "phase", "epoch", "rank")]
            self._order = np.lexsort(keys)
            self._cache.clear()
            changes = self._changes()
            assert changes is not None
        self.block_starts = changes
        self.labels = {name: self._column(name).at(changes) for name in LABELS}

    def load_all(self) -> None:
        """Load all columns, which must fit into MAX_CACHED_BYTES, and drop `load`: it is not called again."""
        for name in self.names:
            self._column(name)
        self._load = _no_column

    def part(self, name: str, start: int, stop: int, *, since_free: bool = False) -> Whole:
        """Return the values of a range of rows, read-only; with `since_free`, STAMPS are offsets from `free_ns`."""
        values = self._column(name).part(start, stop)
        return values + self._column("free_ns").part(start, stop) if name in STAMPS and not since_free else values

    def at(self, name: str, indices: NDArray[np.integer], *, since_free: bool = False) -> Whole:
        """Return the values of the rows at `indices`; with `since_free`, STAMPS are offsets from `free_ns`."""
        values = self._column(name).at(indices)
        return values + self._column("free_ns").at(indices) if name in STAMPS and not since_free else values

    def total(self, name: str, start: int, stop: int) -> int:
        """Return the sum of a column over a range of rows; not for STAMPS."""
        return self._column(name).total(start, stop)

    def _column(self, name: str) -> _Column:
        column = self._cache.get(name)
        if column is None:
            column = self._cache[name] = _Column(self._begins, [_narrowed(values) for values in self._groups(name)])
            while len(self._cache) > 2 and sum(one.cached_bytes for one in self._cache.values()) > MAX_CACHED_BYTES:
                self._cache.popitem(last=False)
        self._cache.move_to_end(name)
        return column

    def _groups(self, name: str) -> Iterator[Whole]:
        """Yield a column group by group, in order; STAMPS as offsets from `free_ns`."""
        count = len(self._begins)
        if self._order is not None:
            column = np.concatenate([self._load(name, group) for group in range(count)])[self._order]
            parts = iter(np.split(column, self._begins[1:]))
        else:
            parts = (self._load(name, group) for group in range(count))
        for begin, values in zip(self._begins.tolist(), parts, strict=True):
            if name in STAMPS:
                yield values - self._column("free_ns").part(begin, begin + len(values))
            else:
                yield values

    def _changes(self) -> Whole | None:
        """Return the index of each block's first row; None if the rows are not in order."""
        found = [np.zeros(1 if self.length else 0, np.int64)]
        columns = [self._column(name) for name in ("step", "block", "phase", "epoch", "rank")]
        for start in range(0, self.length - 1, _CHUNK):
            stop = min(start + _CHUNK, self.length - 1)
            in_order = differ = np.zeros(stop - start, np.bool_)
            for column in columns:
                values = column.part(start, stop + 1)
                same = values[1:] == values[:-1]
                in_order = (values[1:] > values[:-1]) | (same & (in_order if column is not columns[0] else True))
                if column is not columns[0]:
                    differ = differ | ~same
            if not in_order.all():
                return None
            found.append(np.flatnonzero(differ) + start + 1)
        return np.concatenate(found)


def _no_column(name: str, group: int) -> Whole:
    raise KeyError(name)


class StepTable:
    """Some rows of a store, in its order. Values computed from a table can be cached in it; see `once`."""

    def __init__(self, store: ColumnStore, pieces: tuple[Whole, Whole] | None = None) -> None:
        """Take all rows of a store, or `pieces`: begins and ends of row ranges, each within one block."""
        self._store = store
        if pieces is None:
            pieces = store.block_starts, np.append(store.block_starts[1:], store.length)[: len(store.block_starts)]
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

    def since_free(self, stamp: str) -> Whole:
        """Return a column of STAMPS as offsets from `free_ns`, read-only."""
        return self._column(stamp, since_free=True)

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
        """Return for each block of each rank: its rank, and the named columns' values in its first and last row."""
        begins = np.flatnonzero(np.append(True, np.diff(self._blocks) != 0))[: len(self._starts)]
        closes = np.append(begins[1:], len(self._starts))[: len(begins)] - 1
        first, last = self._starts[begins], self._stops[closes] - 1
        at = self._store.at
        return self.label("rank")[begins], [at(name, first) for name in names], [at(name, last) for name in names]

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

    def _column(self, name: str, *, since_free: bool = False) -> Whole:
        if not len(self):
            return np.empty(0, np.int64)
        begins, stops = self._spans
        part = partial(self._store.part, name, since_free=since_free)
        if len(begins) == 1:
            return part(int(begins[0]), int(stops[0]))
        if len(begins) * _SHORT_SPAN > len(self):
            lengths = stops - begins
            indices = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(len(self))
            return self._store.at(name, indices, since_free=since_free)
        return np.concatenate([part(*span) for span in zip(begins.tolist(), stops.tolist(), strict=True)])

    def total(self, name: str) -> int:
        """Return the sum of a column, if possible without materialising it; not for STAMPS."""
        if not len(self):
            return 0
        begins, stops = self._spans
        if len(begins) * _SHORT_SPAN > len(self):
            return int(self._column(name).sum())
        return sum(self._store.total(name, *span) for span in zip(begins.tolist(), stops.tolist(), strict=True))

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

    def since_free(self, stamp: str) -> Whole:
        return self._store.at(stamp, self._indices, since_free=True)


Rows = NDArray[np.void] | StepTable
"""Rows of STEP_DTYPE, shape (rows,), in any order; or a table of them."""


def in_order(rows: Rows) -> StepTable:
    """Return the rows as a table."""
    if isinstance(rows, StepTable):
        return rows
    names = rows.dtype.names or ()
    groups = [min(GROUP_ROWS, len(rows) - begin) for begin in range(0, len(rows), GROUP_ROWS)]
    return StepTable(
        ColumnStore(names, groups, lambda name, group: rows[name][group * GROUP_ROWS : (group + 1) * GROUP_ROWS])
    )


def since_free(rows: Columns, stamp: str) -> Whole:
    """Return a column of STAMPS as offsets from the row's `free_ns`, read-only.

    A table stores offsets: with them, the difference of two timestamps costs a third of that of absolute times.
    """
    if isinstance(rows, StepTable | _Taken):
        return rows.since_free(stamp)
    times: Whole = rows[stamp] - rows["free_ns"]
    return times


def is_any(rows: Columns, name: str) -> bool:
    """Return whether a column has any value other than 0, without materialising all of it."""
    return any(bool(part[name].any()) for part in (chunks(rows) if isinstance(rows, StepTable) else (rows,)))


def sum_of(rows: Rows, name: str) -> int:
    """Return the sum of a column; not for STAMPS."""
    return rows.total(name) if isinstance(rows, StepTable) else int(rows[name].sum())


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


def chunks(table: StepTable, max_rows: int = _CHUNK) -> Iterator[StepTable]:
    """Yield all rows, rank by rank and at most `max_rows` at a time, so that temporary arrays stay small."""
    for part in table.by_rank:
        if len(part) <= max_rows:
            yield part
            continue
        for start in range(0, len(part), max_rows):
            yield part[start : start + max_rows]
