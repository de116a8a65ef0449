"""Step rows by column and in order, so that a result of 1e7 steps is computed in little memory and time.

`in_order` makes a `StepTable` of the rows of one or more ranks. Columns are loaded on demand, kept in the narrowest
integer type that fits and evicted when others are needed, so a computation that uses a few columns, or goes rank by
rank, never has all of a large result in memory. A table has an index of its blocks (steps between two checkpoints):
the rows of one rank, or of one epoch, are found without scanning.
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
"""Moments of a step, stored as the distance from its `free_ns`: that is short, so it fits a narrow type."""
MOST_KEPT_BYTES = 448 << 20
"""Memory for the columns that a store keeps for later."""
GROUP_ROWS = 1 << 20
"""Rows that are loaded, and narrowed, together."""
_CHUNK = 1 << 16
"""Rows worked on at a time: larger chunks exceed the CPU caches, and malloc unmaps and maps their memory each time."""
_SHORT_SPAN = 256
"""Mean length of consecutive rows below which they are gathered by index instead of copied span by span."""


class Columns(Protocol):
    """Rows that are used by column only: a structured array or a StepTable."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class _Narrow:
    """Whole numbers in as few bytes as their range needs."""

    least: int
    above: NDArray[Any] | None
    """Each value less `least`; None where all are the same."""
    length: int
    """Number of values."""

    @property
    def kept_bytes(self) -> int:
        return 0 if self.above is None else self.above.nbytes

    def part(self, start: int, stop: int) -> Whole:
        if self.above is None:
            same: Whole = np.broadcast_to(np.int64(self.least), max(0, min(stop, self.length) - start))
            return same
        above = self.above[start:stop]
        values: Whole = above if above.dtype == np.int64 else np.add(above, self.least, dtype=np.int64)
        return values

    def put(self, out: Whole, start: int) -> None:
        """Write the values from `start` on into `out`, as many as it holds."""
        if self.above is None:
            out[:] = self.least
        else:
            np.add(self.above[start : start + len(out)], self.least, out=out, dtype=np.int64)

    def at(self, places: NDArray[np.integer]) -> Whole:
        if self.above is None:
            return np.full(len(places), self.least)
        values: Whole = self.above[places].astype(np.int64) + self.least  # values too wide to narrow have least = 0
        return values

    def total(self, start: int, stop: int) -> int:
        count = max(0, min(stop, self.length) - start)
        return self.least * count + (0 if self.above is None else int(self.above[start:stop].sum(dtype=np.int64)))


def _narrowed(values: Whole) -> _Narrow:
    if not len(values):
        return _Narrow(0, None, 0)
    least, most = int(values.min()), int(values.max())
    if least == most:
        return _Narrow(least, None, len(values))
    kind = next((kind for kind in (np.uint8, np.uint16, np.uint32) if most - least <= np.iinfo(kind).max), None)
    if kind is None:
        return _Narrow(0, np.array(values), len(values))
    above = np.empty(len(values), kind)
    np.subtract(values, least, out=above, casting="unsafe")  # in pieces that stay in the cache
    return _Narrow(least, above, len(values))


class _Column:
    """A column, stored in groups of rows."""

    def __init__(self, begins: Whole, groups: list[_Narrow]) -> None:
        self._begins, self._groups = begins, groups
        self.kept_bytes = sum(group.kept_bytes for group in groups)

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

    def at(self, places: NDArray[np.integer]) -> Whole:
        if len(self._groups) == 1:
            return self._groups[0].at(places)
        values, numbers = np.empty(len(places), np.int64), np.searchsorted(self._begins, places, side="right") - 1
        for number in np.unique(numbers).tolist():
            own = numbers == number
            values[own] = self._groups[number].at(places[own] - self._begins[number])
        return values

    def total(self, start: int, stop: int) -> int:
        return sum(group.total(first, last) for group, first, last in self._within(start, stop))

    def _within(self, start: int, stop: int) -> Iterator[tuple[_Narrow, int, int]]:
        """Yield the groups that hold rows `start` to `stop`, each with the first and last of these rows within it."""
        number = int(np.searchsorted(self._begins, start, side="right")) - 1
        while start < stop:
            begin, group = int(self._begins[number]), self._groups[number]
            last = min(stop - begin, group.length)
            if last > start - begin:
                yield group, start - begin, last
            start, number = begin + group.length, number + 1


class ColumnStore:
    """All rows of a result, in the order of rank, epoch, phase, block and step."""

    def __init__(self, names: Sequence[str], groups: Sequence[int], load: Callable[[str, int], Whole]) -> None:
        """`groups` are numbers of rows; `load(name, group)` returns a column of a group, if need be repeatedly."""
        self.names, self.length, self._load = tuple(names), sum(groups), load
        self._begins = np.cumsum([0, *groups])[:-1]
        self._kept: OrderedDict[str, _Column] = OrderedDict()
        self._order: NDArray[np.intp] | None = None
        changes = self._changes()
        if changes is None:
            keys = [self._column(name).part(0, self.length) for name in ("step", "block", "phase", "epoch", "rank")]
            self._order = np.lexsort(keys)
            self._kept.clear()
            changes = self._changes()
            assert changes is not None
        self.block_starts = changes
        self.labels = {name: self._column(name).at(changes) for name in LABELS}

    def load_all(self) -> None:
        """Load all columns, which must fit MOST_KEPT_BYTES, and drop `load`: it is not called again."""
        for name in self.names:
            self._column(name)
        self._load = _gone

    def part(self, name: str, start: int, stop: int, *, since_free: bool = False) -> Whole:
        """Return the values of a range of rows, read-only; with `since_free` stamps are distances from `free_ns`."""
        values = self._column(name).part(start, stop)
        return values + self._column("free_ns").part(start, stop) if name in STAMPS and not since_free else values

    def at(self, name: str, places: NDArray[np.integer], *, since_free: bool = False) -> Whole:
        """Return the values of the rows at `places`; with `since_free` stamps are distances from `free_ns`."""
        values = self._column(name).at(places)
        return values + self._column("free_ns").at(places) if name in STAMPS and not since_free else values

    def total(self, name: str, start: int, stop: int) -> int:
        """Return the sum of a range of rows' values; not for stamps."""
        return self._column(name).total(start, stop)

    def _column(self, name: str) -> _Column:
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = _Column(self._begins, [_narrowed(values) for values in self._groups(name)])
            while len(self._kept) > 2 and sum(column.kept_bytes for column in self._kept.values()) > MOST_KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return kept

    def _groups(self, name: str) -> Iterator[Whole]:
        """Yield a column group by group, in order; stamps as the distance from `free_ns`."""
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
        """Return where each block begins; None if the rows are not in order."""
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


def _gone(name: str, group: int) -> Whole:
    raise KeyError(name)


class StepTable:
    """Some rows of a result, in the result's order. It caches what is computed from it: see `once`."""

    def __init__(self, store: ColumnStore, pieces: tuple[Whole, Whole] | None = None) -> None:
        """Take all rows of a store, or `pieces`: starts and stops of row ranges, none across the end of a block."""
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
        """Return a column, read-only, or the rows of a slice or a mask."""
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
        """Return `make(self)`, computed at the first call and cached as long as the table lives."""
        if make not in self._once:
            self._once[make] = make(self)
        made: Made = self._once[make]
        return made

    def since_free(self, stamp: str) -> Whole:
        """Return a column of STAMPS as the distance from `free_ns`, read-only."""
        return self._column(stamp, since_free=True)

    def take(self, places: NDArray[np.integer]) -> Columns:
        """Return the rows at `places`, in that order, without materialising columns of all rows."""
        ends = np.cumsum(self._stops - self._starts)
        piece = np.searchsorted(ends, places, side="right")
        return _Taken(self._store, places + (self._stops - ends)[piece])

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
        """Return the rank, epoch, phase or block of each piece, in the order of the rows; values may repeat."""
        return self._store.labels[name][self._blocks]

    def values(self, label: str) -> list[int]:
        """Return which ranks, epochs, phases or blocks there are, sorted."""
        found: list[int] = np.unique(self.label(label)).tolist()
        return found

    def trimmed(self, first: int, last: int) -> StepTable:
        """Return the table without the `first` first and `last` last rows of each block of each rank."""
        numbers, lengths = self._blocks, self._stops - self._starts
        if len(np.unique(numbers)) == len(numbers):
            starts, stops = self._starts + first, self._stops - last
            there = stops > starts
            return StepTable(self._store, (starts[there], stops[there]))
        begins = np.flatnonzero(np.append(True, np.diff(numbers) != 0))
        sizes = np.add.reduceat(lengths, begins)
        place = np.arange(len(self)) - np.repeat(np.append(0, np.cumsum(sizes)[:-1]), sizes)
        return self._where((place >= first) & (place < np.repeat(sizes, sizes) - last))

    def ends(self, *names: str) -> tuple[Whole, list[Whole], list[Whole]]:
        """Return for each block of each rank: its rank, and the named columns' values in its first and last row."""
        begins = np.flatnonzero(np.append(True, np.diff(self._blocks) != 0))[: len(self._starts)]
        closes = np.append(begins[1:], len(self._starts))[: len(begins)] - 1
        first, last = self._starts[begins], self._stops[closes] - 1
        at = self._store.at
        return self.label("rank")[begins], [at(name, first) for name in names], [at(name, last) for name in names]

    @cached_property
    def _blocks(self) -> NDArray[np.intp]:
        """For each piece, the number of its block in the store."""
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
        there = stops > starts
        return StepTable(self._store, (starts[there], stops[there]))

    def _where(self, mask: NDArray[np.bool_]) -> StepTable:
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise IndexError(f"rows are chosen by a slice or a mask of {len(self)} values")
        if mask.all():
            return self
        ends = np.cumsum(self._stops - self._starts)
        own_starts = ends - (self._stops - self._starts)
        edges = np.unique(np.concatenate([own_starts, np.flatnonzero(mask[1:] != mask[:-1]) + 1, [len(mask)]]))
        starts = edges[:-1]
        there = mask[starts]
        starts, stops = starts[there], edges[1:][there]
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
            places = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(len(self))
            return self._store.at(name, places, since_free=since_free)
        return np.concatenate([part(*span) for span in zip(begins.tolist(), stops.tolist(), strict=True)])

    def total(self, name: str) -> int:
        """Return the sum of a column, not for stamps, if possible without materialising it."""
        if not len(self):
            return 0
        begins, stops = self._spans
        if len(begins) * _SHORT_SPAN > len(self):
            return int(self._column(name).sum())
        return sum(self._store.total(name, *span) for span in zip(begins.tolist(), stops.tolist(), strict=True))

    @cached_property
    def _spans(self) -> tuple[Whole, Whole]:
        """The pieces, with adjacent ones merged."""
        apart = self._starts[1:] != self._stops[:-1]
        return self._starts[np.append(True, apart)], self._stops[np.append(apart, True)]


class _Taken:
    """Rows of a store by index; see `StepTable.take`."""

    def __init__(self, store: ColumnStore, places: NDArray[np.integer]) -> None:
        self._store, self._places = store, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Whole:
        return self._store.at(name, self._places)

    def since_free(self, stamp: str) -> Whole:
        return self._store.at(stamp, self._places, since_free=True)


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
    """Return a column of STAMPS as the distance from its row's `free_ns`, read-only.

    A table stores them so: the difference of two stamps of a row costs a third of what it costs with absolute times.
    """
    if isinstance(rows, StepTable | _Taken):
        return rows.since_free(stamp)
    times: Whole = rows[stamp] - rows["free_ns"]
    return times


def is_any(rows: Columns, name: str) -> bool:
    """Return whether a column has a value other than 0, without materialising the column of all rows."""
    return any(bool(part[name].any()) for part in (chunks(rows) if isinstance(rows, StepTable) else (rows,)))


def sum_of(rows: Rows, name: str) -> int:
    """Return the sum of a column; not for stamps."""
    return rows.total(name) if isinstance(rows, StepTable) else int(rows[name].sum())


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps that all ranks did together, in the order of epochs, blocks and steps."""

    count: int
    keys: tuple[Whole, Whole, Whole]
    """Epoch, block and number of each step."""
    parts: tuple[tuple[int, StepTable, NDArray[np.intp] | slice], ...]
    """For each rank: index of its first row in the table, its rows, and for each row the index of its step."""


def steps_of(table: StepTable) -> Steps:
    """Return the steps that a table's rows belong to."""
    return table.once(_steps_of)


def _steps_of(table: StepTable) -> Steps:
    ranks = table.by_rank
    if not ranks:
        nothing = np.empty(0, np.int64)
        return Steps(0, (nothing, nothing, nothing), ())
    keys = _keys(ranks[0])
    places: list[tuple[Whole, ...] | None] = []
    for part in ranks:
        own = _keys(part)
        same = len(own[0]) == len(keys[0]) and all(np.array_equal(*pair) for pair in zip(own, keys, strict=True))
        places.append(None if same else own)
    firsts = np.append(0, np.cumsum([len(part) for part in ranks])[:-1]).tolist()
    if not any(own is not None for own in places):
        whole = slice(0, len(keys[0]))
        return Steps(len(keys[0]), keys, tuple((first, part, whole) for first, part in zip(firsts, ranks, strict=True)))
    every = np.concatenate([np.stack(keys if own is None else own) for own in places], axis=1)
    order = np.lexsort(every[::-1])
    ordered = every[:, order]
    new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))
    number = np.empty(len(order), np.intp)
    number[order] = np.cumsum(new) - 1
    found = ordered[:, new]
    parts = tuple((first, part, number[first : first + len(part)]) for first, part in zip(firsts, ranks, strict=True))
    return Steps(found.shape[1], (found[0], found[1], found[2]), parts)


def add_at(totals: Whole, place: NDArray[np.intp] | slice, values: Whole | int) -> None:
    """Add the values of one rank's rows to the totals of their steps; `place` may name a step several times."""
    if isinstance(place, slice):
        totals[place] += values
    else:
        np.add.at(totals, place, values)


def raise_at(most: Whole, place: NDArray[np.intp] | slice, values: Whole) -> None:
    """Raise the maxima of the steps to the values of one rank's rows where these are greater."""
    if isinstance(place, slice):
        np.maximum(most[place], values, out=most[place])
    else:
        np.maximum.at(most, place, values)


def _keys(part: StepTable) -> tuple[Whole, Whole, Whole]:
    return part["epoch"], part["block"], part["step"]


def chunks(table: StepTable, most: int = _CHUNK) -> Iterator[StepTable]:
    """Yield all rows, rank by rank and at most `most` at a time, so that temporary arrays stay small."""
    for part in table.by_rank:
        if len(part) <= most:
            yield part
            continue
        for start in range(0, len(part), most):
            yield part[start : start + most]
