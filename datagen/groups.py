"""Reading row groups: every row group that holds a row of the batch is read once, in full.

That is how training reads columnar files: the columns of a row group are read together and cut into batches. A reader
keeps the row group in which its last batch ended, for the next one that has later rows of it. A batch whose rows are
far apart would read far more than it uses, and raises SpaceError.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from datagen.buffers import AlignedBuffer
from datagen.engines import LibraryCalls
from datagen.errors import DatasetError, SpaceError
from datagen.formats.format_base import FormatBase, Sizes, Source, SourceStream, damaged, ended_early, unreadable
from datagen.layout import Layout, Places, Run, Samples, as_places, runs_of
from datagen.records import RangeReader
from datagen.spec import DatasetSpec, Decode, EngineName
from datagen.storage.storage_base import LibraryFile, StorageBase


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

    def groups_of(self, index: int, count: int) -> range:
        """Return the row groups that hold `count` rows from `index` on; raises DatasetError if there are none."""

    def spans(self, group: int) -> list[tuple[int, int]]:
        """Return (offset, bytes) in the file of the spans that hold the columns requested."""

    def called_spans(self, group: int) -> list[tuple[int, int]]:
        """Return the spans that the library reads, after it requested read-ahead for all of them."""

    def payload(self, group: int) -> list[tuple[int, int]]:
        """Return (bytes, payload offset) of the values requested by column; empty if dlemu did not write the file."""

    def largest_bytes(self) -> GroupBytes:
        """Return the memory of the file's largest row group."""


class GroupFormat(FormatBase):
    """A format whose rows are stored in row groups, of which whole columns are read."""

    @abc.abstractmethod
    def group_bytes(self, spec: DatasetSpec, shapes: Sizes) -> GroupBytes:
        """Return the memory of the largest row group in files with these record shapes."""

    @abc.abstractmethod
    def open_groups(self, source: Source, spec: DatasetSpec) -> GroupsFile:
        """Open a file for reading row groups; raises DatasetError if it is not of this format."""

    @abc.abstractmethod
    def decode_group(self, where: str | LibraryFile | SourceStream, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Decode the columns requested of row group `index` by the library, as a training script does.

        `where` is a path, or an open file with its path as `name`. Return the columns' buffers.
        """

    def read_footer(self, source: Source) -> Source:
        """Read the part of a file that the library reads first; return a source that has it in memory."""
        return source


def max_groups(batch_size: int, rows: int, group_rows: int) -> int:
    """Return how many row groups a batch of consecutive rows can touch, given files of `rows` rows.

    The batch may begin and end within a row group, and the last row group of each file may have fewer rows.
    """
    return min(batch_size, batch_size // min(group_rows, rows) + batch_size // rows + 3)


Spans = Sequence[tuple[int, int]]  # (offset, bytes) of some spans of a file


class OpenGroups(NamedTuple):
    """An open file of row groups."""

    file: int
    source: Source
    cached: Source  # the same, with what the library reads first in memory
    groups: GroupsFile


class _Kept(NamedTuple):
    """The row group in which a batch ended."""

    end: int  # the sample after those of the batch: one before it is of another epoch, which reads anew
    file: int
    group: int
    data: bytes
    places: list[int]  # offsets in `data` and bytes of its spans or columns, in turn


class GroupReader(RangeReader):
    """Reads row groups of one split. Not thread-safe. The last file read stays open."""

    def __init__(
        self,
        storage: StorageBase,
        file_format: GroupFormat,
        layout: Layout,
        spec: DatasetSpec,
        engine: EngineName = "fast",
        decode: Decode = "none",
        verify: bool = False,
        transfer_bytes: int = 0,
        *,
        called: bool = False,
    ) -> None:
        """With `called`, make the read calls of the format's library."""
        super().__init__(storage, 0 if called else transfer_bytes)
        self.values: list[Values] = []  # with `verify`, the payload of the last batch
        self._format = file_format
        self._layout = layout
        self._spec = spec
        self._library = LibraryCalls(self, storage, layout.folder, whole=False) if engine == "library" else None
        self._decodes = engine == "library" or decode == "full"
        self._verify = verify
        self._called = called
        self._open: OpenGroups | None = None
        self._kept: _Kept | None = None
        self._stored = AlignedBuffer()  # of the row group that is decoded

    def __del__(self) -> None:
        self.close()

    def read(self, samples: Samples, out: memoryview) -> Places:
        """Read the row groups of these rows into `out`; return the place of each span (decoded: column), in order.

        Raises:
            DatasetError: a file is missing, unreadable, truncated or damaged.
            SpaceError: the rows are spread over more row groups than consecutive rows would be.
        """
        self.values = []
        flat: list[int] = []
        runs = runs_of(samples, self._layout.num_samples_per_file)
        if not runs:
            return as_places(flat)
        first, at, begin, before = runs[0][0], 0, 0, 0
        kept, self._kept = self._kept, None
        read = self._read_decoded if self._decodes else self._read_stored
        for opened, group in self._groups(runs):
            begin, before = at, len(flat)
            if not at and kept is not None and first >= kept.end and kept[1:3] == (opened.file, group):
                at = len(kept.data)
                _check_fits(at, out)
                out[:at] = kept.data
                flat += kept.places
            else:
                kept = None
                at = read(opened, group, out, at, flat)
        end = sum(runs[-1])
        index = end % self._layout.num_samples_per_file
        if index and group in opened.groups.groups_of(index, 1):
            places = [place - begin * (number % 2 == 0) for number, place in enumerate(flat[before:])]
            data = bytes(out[begin:at]) if kept is None else kept.data
            self._kept = _Kept(end, opened.file, group, data, places)
        return as_places(flat)

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.source.close()

    def _groups(self, runs: Iterable[Run]) -> Iterator[tuple[OpenGroups, int]]:
        """Yield each row group that holds some of the samples, once."""
        read = set()
        for first, count in runs:
            file, index = self._layout.locate(first)
            opened = self._open_file(file)
            for group in opened.groups.groups_of(index, count):
                if (file, group) not in read:
                    read.add((file, group))
                    yield opened, group

    def _open_file(self, file: int) -> OpenGroups:
        """Return the open file, opening it first if it is not the last one read."""
        if self._open is not None and self._open.file == file:
            return self._open
        self.close()
        path = self._layout.path(file)
        begun = time.monotonic_ns()
        try:
            source = Source(path, self._storage.open(path), self._storage.alignment, self._transfer_bytes)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            cached = self._format.read_footer(source) if self._called else source
            groups = self._format.open_groups(cached, self._spec)
            if self._verify and not groups.payload(0):
                raise DatasetError(
                    f"{path} is not laid out as `dlemu datagen` does it, so reader.verify=true has nothing to compare "
                    "it with: make the dataset by `dlemu datagen`, or leave reader.verify out"
                )
        except BaseException:
            source.close()
            raise
        self.read_ns += time.monotonic_ns() - begun
        self._open = OpenGroups(file, source, cached, groups)
        return self._open

    def _read_stored(self, opened: OpenGroups, group: int, out: memoryview, at: int, flat: list[int]) -> int:
        """Read a group's spans one after another as stored, and append their places; return where the last one ends."""
        spans, starts, end = self._fill_spans(opened, group, out, at)
        places = [(start, size) for start, (_, size) in zip(starts, spans, strict=True)]
        flat.extend(itertools.chain.from_iterable(places))
        if self._verify:
            self._add_values(opened, group, self._decoded(opened, group, _parts(spans, starts, out)))
        return end

    def _fill_spans(
        self, opened: OpenGroups, group: int, out: memoryview, at: int
    ) -> tuple[list[tuple[int, int]], list[int], int]:
        """Read a group's spans; return them, where each is in `out`, and where the last one ends."""
        source, alignment = opened.source, self._alignment
        spans = opened.groups.called_spans(group) if self._called else opened.groups.spans(group)
        if self._called:
            source.reader.will_need(spans)
        _check_fits(at + _aligned_bytes(spans, alignment), out)
        if alignment > 1 or self._transfer_bytes or self._storage.is_remote:
            return spans, *self.fill([((source.path, source.reader, None), 0, 0, *span) for span in spans], out, at)
        *starts, end = itertools.accumulate((size for _, size in spans), initial=at)
        calls, begun = source.reader.read_calls, time.monotonic_ns()
        try:
            # There may be hundreds of a few KiB
            got = source.reader.read_stretches(spans, out[at:end])
        except OSError as error:
            raise unreadable(source.path, error) from error
        self.count(got, source.reader.read_calls - calls, time.monotonic_ns() - begun)
        if got < end - at:
            number = next(number for number, start in enumerate([*starts[1:], end]) if got < start - at)
            (offset, size), got = spans[number], got - (starts[number] - at)
            raise ended_early(source.path, size - got, offset + got)
        return spans, starts, end

    def _read_decoded(self, opened: OpenGroups, group: int, out: memoryview, at: int, flat: list[int]) -> int:
        """Do as `_read_stored`, with the decoded columns in place of the spans."""
        columns = []
        for column in self._columns(opened, group):
            stop = at + len(column)
            _check_fits(stop, out)
            out[at:stop] = column
            flat += (at, len(column))
            columns.append(out[at:stop])
            at = stop
        if self._verify:
            self._add_values(opened, group, columns)
        return at

    def _columns(self, opened: OpenGroups, group: int) -> list[memoryview]:
        """Return the decoded columns of a row group."""
        path, decode, spec = opened.source.path, self._format.decode_group, self._spec
        if self._library is not None:
            return self._library.call(
                path, lambda local: decode(local, group, spec), lambda: self._from_storage(opened, group)
            )
        spans = opened.groups.called_spans(group) if self._called else opened.groups.spans(group)
        memory = self._stored.view(_aligned_bytes(spans, self._alignment))
        spans, starts, _ = self._fill_spans(opened, group, memory, 0)
        return self._decoded(opened, group, _parts(spans, starts, memory))

    def _decoded(self, opened: OpenGroups, group: int, parts: Sequence[tuple[int, memoryview]]) -> list[memoryview]:
        """Return the decoded columns of a row group of which the parts requested are in memory."""
        return self._format.decode_group(SourceStream(CachedSource(opened.cached, parts)), group, self._spec)

    def _from_storage(self, opened: OpenGroups, group: int) -> list[memoryview]:
        """Have the library read by the client library of the storage, or else through the file that is open here."""
        source = opened.source
        file = self._storage.open_by_library(source.path, whole=False)
        if file is None:
            source.counts()
            columns = self._format.decode_group(SourceStream(source), group, self._spec)
            self.count(*source.counts()[:2])
            return columns
        with file:
            try:
                return self._format.decode_group(file, group, self._spec)
            except Exception as error:
                raise file.failure or error from None
            finally:
                self.count(*file.read_totals())

    def _add_values(self, opened: OpenGroups, group: int, columns: list[memoryview]) -> None:
        path, payload = opened.source.path, opened.groups.payload(group)
        self.values += values_of_columns(opened.file, path, payload, columns)


def _parts(spans: Spans, starts: Sequence[int], memory: memoryview) -> list[tuple[int, memoryview]]:
    """Return (offset in the file, bytes) of spans that were read to `starts` of `memory`."""
    return [(offset, memory[start : start + size]) for (offset, size), start in zip(spans, starts, strict=True)]


def _aligned_bytes(spans: Spans, alignment: int) -> int:
    """Return the bytes of memory that reading the spans takes."""
    return sum(-(-(offset % alignment + size) // alignment) * alignment for offset, size in spans)


def _check_fits(wanted: int, out: memoryview) -> None:
    if wanted > len(out):
        raise SpaceError(
            f"the row groups of a batch take more than the {len(out)} bytes that suffice for consecutive rows: "
            "set reader.sample_shuffle=off, or make the dataset with a dataset.parquet.row_group_size of fewer rows"
        )


def largest_group_bytes(
    file_format: GroupFormat, layout: Layout, spec: DatasetSpec, storage: StorageBase
) -> GroupBytes:
    """Return the memory of the largest row group, from the footer of each file in use."""
    paths = map(layout.path, range(layout.num_files))
    return GroupBytes.maximum(_largest_of_file(file_format, path, spec, storage) for path in paths)


def _largest_of_file(file_format: GroupFormat, path: str, spec: DatasetSpec, storage: StorageBase) -> GroupBytes:
    with opened_groups(file_format, path, spec, storage) as (_, groups):
        return groups.largest_bytes()


@contextlib.contextmanager
def opened_groups(
    file_format: GroupFormat, path: str, spec: DatasetSpec, storage: StorageBase
) -> Iterator[tuple[Source, GroupsFile]]:
    """Open a file of row groups. Raises DatasetError."""
    try:
        reader = storage.open(path)
    except OSError as error:
        raise unreadable(path, error) from error
    with contextlib.closing(Source(path, reader, storage.alignment)) as source:
        yield source, file_format.open_groups(source, spec)


class Values(NamedTuple):
    """A part of a file's payload as it was read."""

    file: int
    data: memoryview
    payload_offset: int


class CachedSource(Source):
    """A `Source` with parts of the file in memory, given as (offset, bytes): only other parts are read."""

    def __init__(self, source: Source, parts: Sequence[tuple[int, memoryview]]) -> None:
        self.path, self.size_bytes = source.path, source.size_bytes
        self._source = source
        self._parts = parts

    def read(self, offset: int, size_bytes: int) -> memoryview:
        for begin, data in self._parts:
            if begin <= offset and offset + size_bytes <= begin + len(data):
                return data[offset - begin : offset - begin + size_bytes]
        return self._source.read(offset, size_bytes)


def values_of_columns(
    file: int, path: str, payload: Sequence[tuple[int, int]], columns: Sequence[memoryview]
) -> list[Values]:
    """Return decoded columns as parts of the payload, of which `payload` lists (bytes, offset) of each column.

    Raises DatasetError: the columns have more or fewer bytes.
    """
    if [len(column) for column in columns] != [size for size, _ in payload]:
        raise damaged(path, "a row group's values do not match its schema,", 0)
    return [Values(file, column, offset) for column, (_, offset) in zip(columns, payload, strict=True)]
