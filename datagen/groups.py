"""Reading row groups: a batch brings every row group that holds some of its rows, each once, whole.

That is how training reads columnar files: a group's columns are read at once and cut into batches. Batches whose rows
lie far apart would read far more than they use, and are refused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from datagen.engines import ThreadReads, ended_early, unreadable
from datagen.errors import DatasetError, SpaceError
from datagen.formats.format_base import Format, Source, damaged
from datagen.layout import Layout
from datagen.places import Places, as_places
from datagen.records import AllocatingSource
from datagen.runs import Samples, runs_of
from datagen.spec import DatasetSpec, Decode, EngineName
from datagen.storage.storage_base import LibraryFile, Reader, StorageBase, read_in_transfers


class GroupBytes(NamedTuple):
    """The memory that a row group takes."""

    stored: int
    """As it is in its file, alignment included."""
    unpacked: int
    """Its values."""

    @classmethod
    def most(cls, all_of: Iterable[GroupBytes]) -> GroupBytes:
        """Return the most that any of them takes of either; 0 of none."""
        sizes = [*all_of, NO_GROUPS]
        return cls(max(group.stored for group in sizes), max(group.unpacked for group in sizes))


NO_GROUPS = GroupBytes(0, 0)


class GroupsFile(Protocol):
    """One open file of row groups."""

    def groups_of(self, index: int, count: int) -> range:
        """Return the row groups that hold `count` rows from `index` on; raises DatasetError where there are none."""
        ...

    def spans(self, group: int) -> list[tuple[int, int]]:
        """Return offset and bytes in the file of the stretches that hold the columns requested."""
        ...

    def values(self, group: int) -> list[tuple[int, int, int]]:
        """Return (offset in the file, bytes, payload offset) of the values requested; none where they are packed."""
        ...

    def payload(self, group: int) -> list[tuple[int, int]]:
        """Return (bytes, payload offset) of the values requested, column by column; none for tables of others."""
        ...

    def largest_bytes(self) -> GroupBytes:
        """Return the most memory that one of its row groups takes."""
        ...


@runtime_checkable
class GroupFormat(Format, Protocol):
    """A format whose rows come in groups that are read whole, in part of their columns."""

    def group_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> GroupBytes:
        """Return the most memory that a row group takes in files of these shapes."""
        ...

    def open_groups(self, source: Source, spec: DatasetSpec) -> GroupsFile:
        """Make a file ready for reading row groups; raises DatasetError when it is not of this format."""
        ...

    def decode_group(self, source: Source, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Read and decode the columns requested; return their buffers."""
        ...

    def load_group(self, where: str | LibraryFile, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Do the same by the library call that a user's script would make, from a path or an open file."""
        ...


@runtime_checkable
class CalledGroupFormat(GroupFormat, Protocol):
    """One whose library's read calls can be made without it."""

    def read_footer(self, source: Source) -> Source:
        """Read what the library reads of a file first; return the file as one that need not be read there again."""
        ...

    def called_spans(self, groups: Any, index: int) -> list[tuple[int, int]]:
        """Return the stretches that the library reads of a row group; it announces all of them to the kernel first."""
        ...


def most_groups(batch_size: int, rows: int, group_rows: int) -> int:
    """Return how many row groups a batch of neighbouring rows may touch, in files of so many rows.

    Each file that it begins, ends or crosses brings one group more than its rows fill.
    """
    return min(batch_size, batch_size // min(group_rows, rows) + batch_size // rows + 3)


Spans = Sequence[tuple[int, int]]
"""Offset and bytes of some stretches of a file."""


class OpenGroups(NamedTuple):
    """The open file."""

    file: int
    path: str
    reader: Reader
    source: Source
    groups: GroupsFile


class GroupReader:
    """Reads row groups of one split. One thread at a time may use it; the file read last stays open."""

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
        """Begin; with `called` the read calls are those of the format's library (`CalledGroupFormat`)."""
        self.app_bytes = 0
        self.read_calls = 0
        self.read_ns = 0
        self.values: list[Values] = []
        """The payload that the last batch read of files of ours, where it is to be verified."""
        self._storage = storage
        self._format = file_format
        self._layout = layout
        self._spec = spec
        self._library = engine == "library"
        self._decodes = engine == "library" or decode == "full"
        self._verify = verify
        self._called = file_format if called and isinstance(file_format, CalledGroupFormat) else None
        self._transfer_bytes = 0 if self._called else transfer_bytes
        self._open: OpenGroups | None = None

    def __del__(self) -> None:
        self.close()

    def read(self, samples: Samples, out: memoryview) -> Places:
        """Read the row groups of these rows into `out`; return the place of each stretch, in their order.

        Raises:
            DatasetError: a file is gone, unreadable, truncated or damaged.
            SpaceError: the rows are in more row groups than neighbouring rows would.
        """
        self.values = []
        flat: list[int] = []
        at = 0
        for opened, group in self._groups(samples):
            read = self._decoded if self._decodes else self._as_it_lies
            at = read(opened, group, out, at, flat)
        return as_places(flat)

    def finish(self) -> None:
        """End a batch: the file stays open for the next."""

    def close(self) -> None:
        """Close what is open."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.reader.close()

    def _groups(self, samples: Samples) -> Iterator[tuple[OpenGroups, int]]:
        """Yield each row group once."""
        read = set()
        for first, count in runs_of(samples, self._layout.num_samples_per_file):
            file, index = self._layout.locate(first)
            opened = self._file(file)
            for group in opened.groups.groups_of(index, count):
                if (file, group) not in read:
                    read.add((file, group))
                    yield opened, group

    def _file(self, file: int) -> OpenGroups:
        if self._open is not None and self._open.file == file:
            return self._open
        self.close()
        path = self._layout.path(file)
        begun = time.monotonic_ns()
        try:
            reader = self._storage.open(path)
        except OSError as error:
            raise unreadable(path, error) from error
        source = AllocatingSource(path, reader, self._storage.alignment, self._transfer_bytes)
        try:
            known = source if self._called is None else self._called.read_footer(source)
            groups = self._format.open_groups(known, self._spec)
            if self._verify and not groups.payload(0):
                raise DatasetError(
                    f"{path} is not laid out as `dlemu datagen` does it, so reader.verify=true has nothing to compare "
                    "it with: make the dataset by `dlemu datagen`, or leave reader.verify out"
                )
        except BaseException:
            reader.close()
            raise
        self.read_ns += time.monotonic_ns() - begun
        self._open = OpenGroups(file, path, reader, known, groups)
        return self._open

    def _as_it_lies(self, opened: OpenGroups, group: int, out: memoryview, at: int, flat: list[int]) -> int:
        """Read a group's stretches one behind the other, and add their places; return where the last one ends."""
        spans, alignment = self._spans(opened, group), self._storage.alignment
        reads = spans if alignment == 1 else [_aligned(offset, size, alignment) for offset, size in spans]
        ends = list(itertools.accumulate((size for _, size in reads), initial=at))
        _check_fits(ends[-1], out)
        self._fill(opened, spans, reads, out[at : ends[-1]])
        starts = ends if alignment == 1 else [end + span[0] % alignment for end, span in zip(ends, spans, strict=False)]
        places = list(zip(starts, (size for _, size in spans), strict=False))
        flat.extend(itertools.chain.from_iterable(places))
        if self._verify:
            stretches = [
                (span[0], out[start : start + size]) for span, (start, size) in zip(spans, places, strict=True)
            ]
            self.values += self._read_values(opened, group, Held(opened.source, stretches))
        return ends[-1]

    def _spans(self, opened: OpenGroups, group: int) -> list[tuple[int, int]]:
        if self._called is None:
            return opened.groups.spans(group)
        spans = self._called.called_spans(opened.groups, group)
        self._storage.will_need(opened.reader, spans)
        return spans

    def _read_values(self, opened: OpenGroups, group: int, held: Held) -> list[Values]:
        """Return the values in what was read, unpacked where they are packed."""
        plain = opened.groups.values(group)
        if plain:
            return [Values(opened.file, held.read(start, size), payload) for start, size, payload in plain]
        return paired(
            opened.file, opened.path, opened.groups.payload(group), self._format.decode_group(held, group, self._spec)
        )

    def _fill(self, opened: OpenGroups, spans: Spans, reads: Spans, out: memoryview) -> None:
        """Read what is requested, which is `spans` and what alignment adds; raises DatasetError."""
        reader, calls, begun = opened.reader, opened.reader.read_calls, time.monotonic_ns()
        try:
            if reads is spans and not self._transfer_bytes and not self._storage.is_remote:
                got = self._storage.read_stretches(reader, spans, out)
                sizes = None if got == len(out) else _dealt(got, spans)
            else:
                sizes = self._each(reader, reads, out)
                got = sum(sizes)
        except OSError as error:
            raise unreadable(opened.path, error) from error
        self.read_ns += time.monotonic_ns() - begun
        self.read_calls += reader.read_calls - calls
        self.app_bytes += got
        for size_got, (begin, _), (offset, size) in zip(sizes or (), reads, spans, strict=bool(sizes)):
            if begin + size_got < offset + size:
                raise ended_early(opened.path, offset + size - begin - size_got, begin + size_got)

    def _each(self, reader: Reader, reads: Spans, out: memoryview) -> list[int]:
        """Read stretches one by one, by the calls that are wanted; return the bytes got of each."""
        ends = list(itertools.accumulate((size for _, size in reads), initial=0))
        fills = [(reader, out[start : start + size], begin) for start, (begin, size) in zip(ends, reads, strict=False)]
        if self._transfer_bytes and not self._storage.is_remote:
            return [read_in_transfers(*fill, self._transfer_bytes) for fill in fills]
        return self._storage.read_all(fills)

    def _decoded(self, opened: OpenGroups, group: int, out: memoryview, at: int, flat: list[int]) -> int:
        columns = []
        for column in self._unpacked(opened, group):
            stop = at + len(column)
            _check_fits(stop, out)
            out[at:stop] = column
            flat += (at, len(column))
            columns.append(out[at:stop])
            at = stop
        if self._verify:
            self.values += paired(opened.file, opened.path, opened.groups.payload(group), columns)
        return at

    def _unpacked(self, opened: OpenGroups, group: int) -> list[memoryview]:
        """Return the columns of a row group."""
        if self._library:
            path = self._storage.local_path(opened.path)
            if path is not None:
                return self._by_path(opened, path, group)
            file = self._storage.open_by_library(opened.path, whole=False)
            if file is not None:
                with file:
                    return self._by_client(opened, file, group)
        return self._by_decoding(opened, group)  # the library is the same, and the storage's own reader is its file

    def _by_decoding(self, opened: OpenGroups, group: int) -> list[memoryview]:
        """Decode what is read through the storage; only the reads count as reading."""
        if self._called is not None:
            spans = self._spans(opened, group)
            data = memoryview(bytearray(sum(size for _, size in spans)))
            self._fill(opened, spans, spans, data)
            begins = itertools.accumulate((size for _, size in spans), initial=0)
            pieces = [(span[0], data[at : at + span[1]]) for at, span in zip(begins, spans, strict=False)]
            return self._format.decode_group(Held(opened.source, pieces), group, self._spec)
        reader, source = opened.reader, opened.source
        assert isinstance(source, AllocatingSource)
        before = reader.app_bytes, reader.read_calls, source.read_ns
        columns = self._format.decode_group(source, group, self._spec)
        self.app_bytes += reader.app_bytes - before[0]
        self.read_calls += reader.read_calls - before[1]
        self.read_ns += source.read_ns - before[2]
        return columns

    def _by_path(self, opened: OpenGroups, path: str, group: int) -> list[memoryview]:
        with ThreadReads() as accounting:
            columns = self._loaded(opened, path, group)
            app_bytes, read_calls = accounting.since_start()
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        return columns

    def _by_client(self, opened: OpenGroups, file: LibraryFile, group: int) -> list[memoryview]:
        try:
            return self._loaded(opened, file, group)
        except Exception:
            if file.failure is not None:
                raise file.failure from None
            raise
        finally:
            app_bytes, read_calls = file.brought()
            self.app_bytes += app_bytes
            self.read_calls += read_calls

    def _loaded(self, opened: OpenGroups, where: str | LibraryFile, group: int) -> list[memoryview]:
        """As with other formats, the time that the library had the processor counts as decoding."""
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            columns = self._format.load_group(where, group, self._spec)
        except OSError as error:
            raise unreadable(opened.path, error) from error
        self.read_ns += max(0, time.monotonic_ns() - wall_ns - (time.thread_time_ns() - cpu_ns))
        return columns


def _aligned(offset: int, size: int, alignment: int) -> tuple[int, int]:
    """Return the offset and bytes to request where both are multiples of `alignment`."""
    before = offset % alignment
    return offset - before, -(-(before + size) // alignment) * alignment


def _dealt(got: int, spans: Spans) -> list[int]:
    """Return the bytes got of each stretch, of all together."""
    sizes = []
    for _, size in spans:
        sizes.append(min(got, size))
        got -= sizes[-1]
    return sizes


def _check_fits(wanted: int, out: memoryview) -> None:
    if wanted > len(out):
        raise SpaceError(
            f"the row groups of a batch take more than the {len(out)} bytes into which neighbouring rows would fit: "
            "set reader.sample_shuffle=off, or make the dataset with a dataset.parquet.row_group_size of fewer rows"
        )


def largest_group_bytes(
    file_format: GroupFormat, layout: Layout, spec: DatasetSpec, storage: StorageBase
) -> GroupBytes:
    """Return the most memory that a row group takes, looked up in the footer of each file in use."""
    return GroupBytes.most(_largest(file_format, layout.path(file), spec, storage) for file in range(layout.num_files))


def _largest(file_format: GroupFormat, path: str, spec: DatasetSpec, storage: StorageBase) -> GroupBytes:
    try:
        reader = storage.open(path)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        return file_format.open_groups(AllocatingSource(path, reader, storage.alignment), spec).largest_bytes()
    finally:
        reader.close()


class Values(NamedTuple):
    """Some of a file's payload as it was read."""

    file: int
    data: memoryview
    payload_offset: int


class Held:
    """A file of which some stretches are in memory: a `Source` that reads only the rest."""

    def __init__(self, source: Source, stretches: Sequence[tuple[int, memoryview]]) -> None:
        self.path, self.size_bytes, self.scratch = source.path, source.size_bytes, source.scratch
        self._source = source
        self._stretches = stretches

    def read(self, offset: int, size_bytes: int) -> memoryview:
        for begin, data in self._stretches:
            if begin <= offset and offset + size_bytes <= begin + len(data):
                return data[offset - begin : offset - begin + size_bytes]
        return self._source.read(offset, size_bytes)


def paired(file: int, path: str, payload: Sequence[tuple[int, int]], columns: Sequence[memoryview]) -> list[Values]:
    """Return the values of unpacked columns, cut as `payload` says it: (bytes, payload offset), column by column.

    Raises:
        DatasetError: the columns have more or fewer bytes.
    """
    values: list[Values] = []
    column, data, at = iter(columns), memoryview(b""), 0
    for size, payload_offset in payload:
        if at == len(data):
            data, at = next(column, memoryview(b"")), 0
        if at + size > len(data):
            break
        values.append(Values(file, data[at : at + size], payload_offset))
        at += size
    if len(values) < len(payload) or at < len(data) or next(column, None) is not None:
        raise damaged(path, "a row group's values do not match its schema,", 0)
    return values
