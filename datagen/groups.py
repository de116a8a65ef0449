"""Reads row groups: every row group that holds a row of the batch is read once, in full.

Training scripts read columnar files like this: they read all columns of a row group together, and cut its rows into
batches. The row group in which a batch ended stays in memory, because the next batch may begin with later rows of it.
Scattered rows would need far more row groups than a batch has memory for: reading them raises SpaceError.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from datagen.buffers import AlignedBuffer
from datagen.engines import ReadSettings, by_library
from datagen.errors import DatasetError, DlemuError, SpaceError, ended_early, read_failure, reading
from datagen.formats import format_base as base
from datagen.layout import Layout, Places, Run, Samples, cut_runs, places_from
from datagen.records import RangeReader
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Span, StorageBase

Group = tuple[int, int]  # a row group: number of its file, and its number in that file


class GroupBytes(NamedTuple):
    """The memory that a row group takes."""

    stored: int  # as stored in the file, including padding for alignment
    unpacked: int  # as decoded values

    @classmethod
    def maximum(cls, sizes: Iterable[GroupBytes]) -> GroupBytes:
        """Return the maximum of each field; 0 without any sizes."""
        return cls(*map(max, zip(NO_GROUPS, *sizes, strict=True)))


NO_GROUPS = GroupBytes(0, 0)


class GroupsFile(Protocol):
    """An open file of row groups. "Columns requested" are those with `read: true` in the settings."""

    source: base.Source  # the file; parts of it may be in memory

    def groups_of(self, index: int, count: int) -> range:
        """Return the row groups that hold `count` rows from `index` on."""

    def spans(self, group: int) -> list[Span]:
        """Return the spans of the file that hold the columns requested."""

    def payload(self, group: int) -> list[tuple[int, int]]:
        """Return (bytes, payload offset) of each column requested; an empty list if dlemu did not write the file."""

    def largest_bytes(self) -> GroupBytes:
        """Return the memory of the file's largest row group."""


class GroupFormat(base.FormatBase):
    """A format that stores rows in row groups, from which whole columns are read."""

    @abc.abstractmethod
    def open_groups(self, source: base.Source, spec: DatasetSpec, *, matched: bool = False) -> GroupsFile:
        """Open a file for reading row groups; if `matched`, by the read calls of the format's library.

        Such a library requests read-ahead for all spans of a row group before it reads them.
        """

    @abc.abstractmethod
    def decode_group(self, where: str | base.SourceStream, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Have the format's library decode the columns requested of row group `index`, as a training script does.

        `where` is a path, or an open file with its path as `name`. Return the memory of each decoded column.
        """


def max_groups(batch_size: int, rows: int, group_rows: int) -> int:
    """Return the maximum number of row groups that a batch of consecutive rows can touch, in files of `rows` rows.

    The batch may begin and end within a row group, and the last row group of each file may have fewer rows.
    """
    return min(batch_size, batch_size // min(group_rows, rows) + batch_size // rows + 3)


class _GroupInMemory(NamedTuple):
    """A row group that has been read."""

    group: Group
    data: memoryview | bytes
    places: list[Span]  # where the group's spans (if decoded: its columns) are in `data`
    next_sample: int = 0  # number of the sample after the batch that ended in this group


class GroupReader(RangeReader):
    """Reads row groups of one split. The last file read stays open. Not thread-safe."""

    def __init__(self, settings: ReadSettings, file_format: GroupFormat, spec: DatasetSpec) -> None:
        super().__init__(settings, matched=settings.matched)
        self._format, self._spec = file_format, spec
        self._library = settings.library
        self._decodes = settings.decodes or settings.library
        self._file_number = -1  # number of the last file read
        self._group_file: GroupsFile | None = None  # that file; None while no file is open
        self._kept: _GroupInMemory | None = None  # the row group in which the last batch ended, if it has later rows
        self._stored = AlignedBuffer()  # for the stored bytes of a row group that is to be decoded

    def read(self, samples: Samples, out: memoryview) -> Places:
        """See `Engine.read`. The places are those of the spans, or of the columns if they are decoded.

        Raises SpaceError, too, if the rows are in more row groups than consecutive rows can touch.
        """
        runs = cut_runs(samples, self._layout.num_samples_per_file)
        try:
            return places_from(self._read_groups(runs, out) if runs else ())
        except DlemuError:
            raise
        except Exception as error:
            raise read_failure(self._group_file.source.path if self._group_file else "", error) from error

    def _read_groups(self, runs: list[Run], out: memoryview) -> list[int]:
        """Read the row groups of all runs, each once; return the places of their spans as a flat list."""
        flat: list[int] = []
        groups_read: set[Group] = set()
        kept = self._kept  # by the last batch
        self._kept = None
        latest: _GroupInMemory | None = None
        begin = 0  # where the next row group goes in `out`
        for first, count in runs:
            file, index = self._layout.locate(first)
            group_file = self._open_file(file)
            for number in group_file.groups_of(index, count):
                group = file, number
                if group in groups_read:
                    continue
                groups_read.add(group)
                # A batch that begins before the end of the last one belongs to another epoch, which reads all again
                if begin == 0 and kept is not None and kept.group == group and first >= kept.next_sample:
                    latest = kept
                    _check_fits(len(kept.data), out)
                    out[: len(kept.data)] = kept.data
                else:
                    latest = self._read_group(group, group_file, out[begin:])
                for start, size in latest.places:
                    flat += (begin + start, size)
                begin += len(latest.data)
        next_sample = first + count  # of the last run
        next_index = next_sample % self._layout.num_samples_per_file
        # An index of 0 begins another file; else the next sample may be in the row group read last
        if latest is not None and next_index and latest.group[1] in group_file.groups_of(next_index, 1):
            self._kept = latest._replace(data=bytes(latest.data), next_sample=next_sample)
        return flat

    def close(self) -> None:
        group_file, self._group_file = self._group_file, None
        if group_file is not None:
            group_file.source.close()

    def largest_bytes(self, file: int) -> GroupBytes:
        """Return the memory of the largest row group of a file. Raises DatasetError."""
        group_file = self._open(file)
        with contextlib.closing(group_file.source), reading(group_file.source.path):
            return group_file.largest_bytes()

    def _open(self, file: int) -> GroupsFile:
        path = self._layout.path(file)
        with reading(path):
            source = base.Source(path, self._storage.open(path), self._alignment, self._transfer_bytes)
            try:
                return self._format.open_groups(source, self._spec, matched=self._matched)
            except BaseException:
                source.close()
                raise

    def _open_file(self, file: int) -> GroupsFile:
        """Return an open file, which stays open until another one is read."""
        if self._group_file is not None and self._file_number == file:
            return self._group_file
        self.close()
        started_ns = time.monotonic_ns()
        group_file = self._group_file = self._open(file)
        self._file_number = file
        self.read_ns += time.monotonic_ns() - started_ns
        if self._check is not None and not group_file.payload(0):
            self.close()
            raise DatasetError(
                f"{group_file.source.path} is not laid out as `dlemu datagen` does it, so reader.verify=true has "
                "nothing to compare it with: make the dataset by `dlemu datagen`, or leave reader.verify out"
            )
        return group_file

    def _read_group(self, group: Group, group_file: GroupsFile, out: memoryview) -> _GroupInMemory:
        """Read a row group to the start of `out`, decoded and verified if that is requested."""
        file, number = group
        columns: Sequence[memoryview] = ()
        decode = self._format.decode_group
        if self._library:
            path = group_file.source.path
            columns = by_library(self, self._storage, path, lambda local: decode(local, number, self._spec))
        else:
            spans = group_file.spans(number)
            memory, starts, end = self._read_spans(group_file.source, spans, out)
            spans_read = list(zip(starts, spans, strict=True))
            places = [(start, size) for start, (_, size) in spans_read]
            if self._decodes or self._check is not None:
                parts = [(offset, memory[start : start + size]) for start, (offset, size) in spans_read]
                stream = base.SourceStream(base.CachedSource(group_file.source, parts))
                columns = decode(stream, number, self._spec)
        if self._decodes:  # the places are those of the columns, back to back
            *starts, end = itertools.accumulate(map(len, columns), initial=0)
            _check_fits(end, out)
            places = [(start, len(column)) for start, column in zip(starts, columns, strict=True)]
            for (start, size), column in zip(places, columns, strict=True):
                out[start : start + size] = column
        if self._check is not None:
            payload = group_file.payload(number)
            if [len(column) for column in columns] != [size for size, _ in payload]:
                raise base.DamagedError("a row group's values do not match its schema")
            for column, (_, offset) in zip(columns, payload, strict=True):
                self._check(base.Sample(column, column, offset), file)
        return _GroupInMemory(group, out[:end], places)

    def _read_spans(self, source: base.Source, spans: list[Span], out: memoryview) -> tuple[memoryview, list[int], int]:
        """Read spans of a file into `out`, or into memory of this reader if they are to be decoded.

        Return that memory, the start of each span in it, and the end of the last one.
        """
        needed_bytes = 0
        for offset, size in spans:
            needed_bytes += offset % self._alignment + size
            needed_bytes += -needed_bytes % self._alignment  # a read begins and ends with a whole block
        memory = self._stored.view(needed_bytes) if self._decodes else out
        _check_fits(needed_bytes, memory)
        if self._matched:
            source.reader.will_need(spans)
        if self._alignment > 1 or self._transfer_bytes or self._storage.is_remote:
            starts, end = self.fill([(source, *span) for span in spans], memory, 0)
        else:
            *starts, end = itertools.accumulate((size for _, size in spans), initial=0)
            calls_before, started_ns = source.reader.read_calls, time.monotonic_ns()
            bytes_read = source.reader.read_stretches(spans, memory[:end])  # one call for hundreds of small spans
            self.count(bytes_read, source.reader.read_calls - calls_before, time.monotonic_ns() - started_ns)
            if bytes_read < end:
                for start, (offset, size) in zip(starts, spans, strict=True):
                    if bytes_read < start + size:
                        raise ended_early(source.path, start + size - bytes_read, offset + bytes_read - start)
        return memory, starts, end


def _check_fits(size_bytes: int, out: memoryview) -> None:
    if size_bytes > len(out):
        raise SpaceError(
            f"row groups take {size_bytes - len(out)} bytes more than planned: set reader.sample_shuffle=off, set "
            "dataset.parquet.row_group_size to that of the files (or make the data by a smaller one), or set "
            "reader.decode=none and reader.engine=matched"
        )


def largest_group_bytes(
    file_format: GroupFormat, layout: Layout, files: Sequence[int], spec: DatasetSpec, storage: StorageBase
) -> GroupBytes:
    """Return the memory of the largest row group, from the footer of each of these files."""
    from datagen.thread_pool import map_in_threads  # here, because the workers of a training need no thread pool

    reader = GroupReader(ReadSettings(storage, layout), file_format, spec)
    return GroupBytes.maximum(map_in_threads(reader.largest_bytes, files))
