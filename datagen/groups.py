"""Reading row groups: every row group that holds a row of the batch is read once, in full.

That is how training reads columnar files: the columns of a row group are read together and cut into batches. A reader
keeps the row group in which its last batch ended, for the next one that has later rows of it. A batch whose rows are
far apart would read far more than it uses, and raises SpaceError.
"""

from __future__ import annotations

import abc
import bisect
import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from datagen.buffers import AlignedBuffer
from datagen.engines import Check, by_library
from datagen.errors import DatasetError, DlemuError, SpaceError
from datagen.formats import format_base as base
from datagen.layout import Layout, Places, Run, Samples, as_places, runs_of
from datagen.records import RangeReader
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageBase

Span = tuple[int, int]  # (offset, bytes) of a part of a file


class GroupBytes(NamedTuple):
    """The memory that a row group takes."""

    stored: int  # as stored in the file, including what alignment adds
    unpacked: int  # as decoded values

    @classmethod
    def maximum(cls, sizes: Iterable[GroupBytes]) -> GroupBytes:
        """Return the maximum of each field, 0 if there are no sizes."""
        listed = [*sizes, NO_GROUPS]
        return cls(max(group.stored for group in listed), max(group.unpacked for group in listed))


NO_GROUPS = GroupBytes(0, 0)


class GroupsFile(Protocol):
    """An open file of row groups. "Columns requested" are those with `read: true` in the settings."""

    source: base.Source  # the file, maybe with parts of it in memory

    def groups_of(self, index: int, count: int) -> range:
        """Return the row groups that hold `count` rows from `index` on."""

    def spans(self, group: int) -> list[Span]:
        """Return the spans to be read, which hold the columns requested."""

    def payload(self, group: int) -> list[tuple[int, int]]:
        """Return (bytes, payload offset) of the values requested by column; empty if dlemu did not write the file."""

    def largest_bytes(self) -> GroupBytes:
        """Return the memory of the file's largest row group."""


class GroupFormat(base.FormatBase):
    """A format whose rows are stored in row groups, of which whole columns are read."""

    @abc.abstractmethod
    def open_groups(self, source: base.Source, spec: DatasetSpec, *, matched: bool = False) -> GroupsFile:
        """Open a file for reading row groups.

        With `matched`, read its structure, and later the spans, as the library does, which requests read-ahead for all
        spans of a group first.
        """

    @abc.abstractmethod
    def decode_group(self, where: str | base.SourceStream, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Decode the columns requested of row group `index` by the library, as a training script does.

        `where` is a path, or an open file with its path as `name`. Return the columns' buffers.
        """


def max_groups(batch_size: int, rows: int, group_rows: int) -> int:
    """Return how many row groups a batch of consecutive rows can touch, given files of `rows` rows.

    The batch may begin and end within a row group, and the last row group of each file may have fewer rows.
    """
    return min(batch_size, batch_size // min(group_rows, rows) + batch_size // rows + 3)


Group = tuple[int, int]  # a row group: number of its file, and its number in that file


class _LastGroup(NamedTuple):
    """The row group in which a batch ended, which the next batch of the same epoch need not read again."""

    end: int  # the sample after the last one of the batch; a next batch from an earlier sample is of another epoch
    group: Group
    data: bytes
    places: list[Span]  # where in `data` the group's spans (decoded: columns) are


class GroupReader(RangeReader):
    """Reads row groups of one split. Not thread-safe. The last file read stays open."""

    def __init__(
        self,
        storage: StorageBase,
        file_format: GroupFormat,
        layout: Layout,
        spec: DatasetSpec,
        check: Check | None,
        transfer_bytes: int,
        *,
        by_library: bool,
        decodes: bool,
        matched: bool,
    ) -> None:
        """Read `by_library`, which decodes, or with `matched` by the same read calls that the library makes."""
        super().__init__(storage, 0 if matched else transfer_bytes)
        self._format = file_format
        self._layout = layout
        self._spec = spec
        self._check = check
        self._by_library = by_library
        self._decodes = decodes or by_library
        self._matched = matched
        self._open: tuple[int, GroupsFile] | None = None  # the last file read, and its number
        self._last_group: _LastGroup | None = None
        self._stored = AlignedBuffer()  # of the row group that is decoded

    def __del__(self) -> None:
        self.close()

    def read(self, samples: Samples, out: memoryview) -> Places:
        """Read the row groups of these rows into `out`; return the place of each span (decoded: column), in order.

        Raises as `Engine.read`; SpaceError also where the rows are in more row groups than consecutive rows would be.
        """
        runs = runs_of(samples, self._layout.num_samples_per_file)
        try:
            return as_places(self._read(runs, out) if runs else ())
        except DlemuError:
            raise
        except Exception as error:
            raise base.read_failure(self._open[1].source.path if self._open else "", error) from error

    def _read(self, runs: list[Run], out: memoryview) -> list[int]:
        """Do as `read`; return the places as a flat list."""
        flat: list[int] = []
        groups_read: set[Group] = set()
        end = 0
        data: bytes | None
        last_group, self._last_group = self._last_group, None
        for first_sample, opened, group in self._groups(runs):
            if group in groups_read:
                continue
            groups_read.add(group)
            begin, last_read, last_opened = end, group, opened
            if begin == 0 and last_group is not None and last_group.group == group and first_sample >= last_group.end:
                data, places = last_group.data, last_group.places
                end = len(data)
                _check_fits(end, out)
                out[:end] = data
            else:
                data = None
                places, size = self._read_group(group, opened, out[begin:])
                end += size
            for start, size in places:
                flat += (begin + start, size)
        next_sample = sum(runs[-1])
        index = next_sample % self._layout.num_samples_per_file
        if index and last_read[1] in last_opened.groups_of(index, 1):  # the group has more samples
            self._last_group = _LastGroup(next_sample, last_read, data or bytes(out[begin:end]), places)
        return flat

    def _groups(self, runs: Iterable[Run]) -> Iterator[tuple[int, GroupsFile, Group]]:
        """Yield each row group of each run, with the run's first sample and the open file."""
        for first, count in runs:
            file, index = self._layout.locate(first)
            opened = self._open_file(file)
            for group in opened.groups_of(index, count):
                yield first, opened, (file, group)

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].source.close()

    def _open_file(self, file: int) -> GroupsFile:
        """Return the open file, opening it first if it is not the last one read."""
        if self._open is not None and self._open[0] == file:
            return self._open[1]
        self.close()
        path = self._layout.path(file)
        begun = time.monotonic_ns()
        groups = open_groups(self._format, path, self._spec, self._storage, self._transfer_bytes, matched=self._matched)
        self._open = file, groups
        self.read_ns += time.monotonic_ns() - begun
        if self._check is not None and not groups.payload(0):
            self.close()
            raise DatasetError(
                f"{path} is not laid out as `dlemu datagen` does it, so reader.verify=true has nothing to compare "
                "it with: make the dataset by `dlemu datagen`, or leave reader.verify out"
            )
        return groups

    def _read_group(self, file_group: Group, opened: GroupsFile, out: memoryview) -> tuple[list[Span], int]:
        """Read a row group into `out`; return the places of its spans (decoded: columns), and where the last ends."""
        file, group = file_group
        columns: Sequence[memoryview] = ()
        decode = self._format.decode_group
        if self._by_library:
            path = opened.source.path
            columns = by_library(self, self._storage, path, lambda local: decode(local, group, self._spec))
        else:
            spans = opened.spans(group)
            needed = sum(-(-(start % self._alignment + size) // self._alignment) for start, size in spans)
            needed *= self._alignment
            memory = self._stored.view(needed) if self._decodes else out
            _check_fits(needed, memory)
            starts, end = self._fill_spans(opened.source, spans, memory)
            places = [(start, size) for start, (_, size) in zip(starts, spans, strict=True)]
            if self._decodes or self._check is not None:
                stored = (memory[start : start + size] for start, size in places)
                parts = [(offset, data) for (offset, _), data in zip(spans, stored, strict=True)]
                stream = base.SourceStream(base.CachedSource(opened.source, parts))
                columns = decode(stream, group, self._spec)
        if self._decodes:
            *starts, end = itertools.accumulate(map(len, columns), initial=0)
            _check_fits(end, out)
            places = [(start, len(column)) for start, column in zip(starts, columns, strict=True)]
            for (start, size), column in zip(places, columns, strict=True):
                out[start : start + size] = column
        if self._check is not None:
            for values in samples_of_columns(opened.payload(group), columns):
                self._check(values, file)
        return places, end

    def _fill_spans(self, source: base.Source, spans: Sequence[Span], out: memoryview) -> tuple[list[int], int]:
        """Read spans of a file; return where each is in `out`, and where the last one ends."""
        if self._matched:
            source.reader.will_need(spans)
        if self._alignment > 1 or self._transfer_bytes or self._storage.is_remote:
            return self.fill([((source.path, source.reader, None), 0, 0, *span) for span in spans], out, 0)
        *starts, end = itertools.accumulate((size for _, size in spans), initial=0)
        calls, begun = source.reader.read_calls, time.monotonic_ns()
        got = source.reader.read_stretches(spans, out[:end])  # one call for hundreds of spans of a few KiB
        self.count(got, source.reader.read_calls - calls, time.monotonic_ns() - begun)
        if got < end:
            missing = bisect.bisect_right(starts, got) - 1  # the span within which the file ended
            (offset, size), start = spans[missing], starts[missing]
            raise base.ended_early(source.path, start + size - got, offset + got - start)
        return starts, end


def _check_fits(size_bytes: int, out: memoryview) -> None:
    if size_bytes > len(out):
        raise SpaceError(
            f"the row groups of a batch take {size_bytes - len(out)} bytes more than suffice for consecutive rows: "
            "set reader.sample_shuffle=off, or make the dataset with a dataset.parquet.row_group_size of fewer rows"
        )


def largest_group_bytes(
    file_format: GroupFormat, layout: Layout, files: Sequence[int], spec: DatasetSpec, storage: StorageBase
) -> GroupBytes:
    """Return the memory of the largest row group, from the footer of each of these files."""
    from datagen.thread_pool import of_each  # imported here, because the workers of a training need no thread pool

    def largest(file: int) -> GroupBytes:
        groups = open_groups(file_format, layout.path(file), spec, storage)
        with contextlib.closing(groups.source), base.reading(groups.source.path):
            return groups.largest_bytes()

    return GroupBytes.maximum(of_each(files, largest))


def open_groups(
    file_format: GroupFormat,
    path: str,
    spec: DatasetSpec,
    storage: StorageBase,
    transfer_bytes: int = 0,
    *,
    matched: bool = False,
) -> GroupsFile:
    """Open a file of row groups. Raises DatasetError."""
    with contextlib.ExitStack() as stack, base.reading(path):
        source = base.Source(path, storage.open(path), storage.alignment, transfer_bytes)
        stack.callback(source.close)
        groups = file_format.open_groups(source, spec, matched=matched)
        stack.pop_all()
        return groups


def samples_of_columns(payload: Sequence[tuple[int, int]], columns: Sequence[memoryview]) -> list[base.Sample]:
    """Return decoded columns as parts of the payload, of which `payload` lists (bytes, offset) of each column.

    Raises DamagedError: the columns have more or fewer bytes.
    """
    if [len(column) for column in columns] != [size for size, _ in payload]:
        raise base.DamagedError("a row group's values do not match its schema,")
    return [base.Sample(column, column, offset) for column, (_, offset) in zip(columns, payload, strict=True)]
