"""Reading samples that are records of larger files: many small reads a batch, from files that stay open.

Consecutive samples of a batch that are adjacent in a file are read by one call. The format (`RecordFormat`) locates
and checks records; this module keeps files open, places records in memory and counts bytes, calls and time.
"""

from __future__ import annotations

import contextlib
import resource
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from datagen.engines import Check, Engine
from datagen.errors import DatasetError, SpaceError
from datagen.formats import format_base as base
from datagen.formats._source import python_calls
from datagen.layout import NO_PLACES, Layout, Places, Run, Samples, as_places, numbers_of, runs_of, shifted
from datagen.storage.storage_base import Reader, StorageBase, read_in_transfers

MAX_OPEN_FILES = 512  # maximum files that a reader keeps open; enough for all files of DLIO's bert
HEAD_BYTES = 16  # bytes that a script with an index reads first of each record: its length or header

OpenRecords = tuple[str, Reader, base.RecordFile]
"""Path, reader and records of an open file. A plain tuple, because reading a small record takes only a few us."""
Request = tuple[OpenRecords, int, int, int, int]
"""A read: an open file, index of the first record, number of records, their offset and bytes in the file."""
Ranges = Sequence[tuple[tuple[str, Reader, object], int, int, int, int]]
"""Reads that need not be of records: only path, reader, offset and bytes are used."""


class RangeReader(Engine):
    """Reads byte ranges of open files."""

    def __init__(self, storage: StorageBase, transfer_bytes: int) -> None:
        self._storage = storage
        self._alignment = storage.alignment
        self._transfer_bytes = transfer_bytes

    def fill(self, requests: Ranges, out: memoryview, position: int) -> tuple[list[int], int]:
        """Read all requests into `out`, from `position` on; return the index of each, and where the last one ends.

        Raises DatasetError: a file ends too early, or can't be read. SpaceError: `out` is too small.
        """
        if self._storage.is_remote:
            return self._fill_concurrently(requests, out, position)
        return self._fill_each(requests, out, position)

    def _fill_each(self, requests: Ranges, out: memoryview, position: int) -> tuple[list[int], int]:
        """Do as `fill`, one request after another."""
        alignment, transfer_bytes = self._alignment, self._transfer_bytes
        starts = []
        app_bytes = read_calls = 0
        begun = time.monotonic_ns()
        for (path, reader, _), _, _, offset, size in requests:
            before = offset % alignment
            start = position + before
            stop = -(-(start + size) // alignment) * alignment
            if stop > len(out):
                raise SpaceError(f"{path}: its records are larger than the {len(out)} bytes reserved for a batch")
            calls = reader.read_calls
            try:
                got = read_in_transfers(reader, out[position:stop], offset - before, transfer_bytes)
            except OSError as error:
                raise base.unreadable(path, error) from error
            if got < before + size:
                raise base.ended_early(path, before + size - got, offset - before + got)
            read_calls += reader.read_calls - calls
            app_bytes += got
            starts.append(start)
            position = stop
        self.read_ns += time.monotonic_ns() - begun
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        return starts, position

    def _fill_concurrently(self, requests: Ranges, out: memoryview, position: int) -> tuple[list[int], int]:
        """Do as `fill`, with several requests in flight."""
        starts, fills = [], []
        for (path, reader, _), _, _, offset, size in requests:
            if position + size > len(out):
                raise SpaceError(f"{path}: its records are larger than the {len(out)} bytes reserved for a batch")
            fills.append((reader, out[position : position + size], offset))
            starts.append(position)
            position += size
        readers = {id(reader): reader for reader, _, _ in fills}.values()
        calls = sum(reader.read_calls for reader in readers)
        begun = time.monotonic_ns()
        try:
            sizes = self._storage.read_all(fills)
        except OSError as error:
            raise base.unreadable(error.filename or requests[0][0][0], error) from error
        self.read_ns += time.monotonic_ns() - begun
        self.read_calls += sum(reader.read_calls for reader in readers) - calls
        self.app_bytes += sum(sizes)
        for ((path, _, _), _, _, offset, size), got in zip(requests, sizes, strict=True):
            if got < size:
                raise base.ended_early(path, size - got, offset + got)
        return starts, position


class RecordReader(RangeReader):
    """Reads samples of one split; keeps the most recently used files open (LRU). Not thread-safe."""

    def __init__(
        self,
        storage: StorageBase,
        file_format: base.RecordFormat,
        layout: Layout,
        check: Check | None = None,
        transfer_bytes: int = 0,
        offsets: Mapping[str, base.Offsets] | None = None,
        *,
        matched: bool = False,
    ) -> None:
        """With `matched`, make the read calls of the format's library, where known, instead of as few as possible.

        `offsets` are those of records in files where they differ in length, by path.
        """
        self._matched = matched and (file_format.looks_up or file_format.stream_calls is not None)
        super().__init__(storage, 0 if self._matched else transfer_bytes)
        self._format = file_format
        self._layout = layout
        self._samples_per_file = layout.num_samples_per_file
        self._check = check
        self._offsets = offsets or {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft // 8  # a process may have several readers
        self._max_open = max(1, min(MAX_OPEN_FILES, limit))
        self._open: OrderedDict[int, OpenRecords] = OrderedDict()
        self._closing = weakref.finalize(self, _close_all, self._open)

    def read(self, samples: Samples, out: memoryview) -> Places:
        """Do as `Engine.read`, as densely as the storage's alignment permits."""
        batch_runs = runs_of(samples, self._samples_per_file)
        total = self._layout.num_samples
        for first, count in batch_runs:
            if not 0 <= first <= first + count <= total:
                raise IndexError(f"samples {first} to {first + count - 1} of {total}")
        places: list[Places] = []
        position = 0  # in `out`
        step = self._max_open  # runs of as many files as may be open: each is read before it is closed
        for begin in range(0, len(batch_runs), step):
            requests = self._requests(batch_runs[begin : begin + step])
            starts, position = self.fill(requests, out, position)
            places.append(self._places(requests, starts, out))
        all_places = places[0] if len(places) == 1 else np.concatenate([NO_PLACES, *places])
        if self._check is not None:
            for sample, (start, size) in zip(numbers_of(samples), all_places.tolist(), strict=True):
                file, index = divmod(sample, self._samples_per_file)
                data = out[start : start + size]
                self._check(base.Sample(data, data, index * size), file)
        return all_places

    def _requests(self, batch_runs: list[Run]) -> list[Request]:
        """Return the reads for some runs: one for each run, or for each record where records are scattered."""
        open_file, per_file = self._opened_file, self._samples_per_file
        requests = []
        for first, count in batch_runs:
            file, index = divmod(first, per_file)
            opened = open_file(file)
            records = opened[2]
            try:
                if count > 1 and records.scattered:
                    spans = [(record, 1, *records.span(record, 1)) for record in range(index, index + count)]
                    requests += [(opened, *span) for span in spans]
                else:
                    offset, size = records.span(index, count)
                    requests.append((opened, index, count, offset, size))
            except base.DamagedError as error:
                raise base.read_failure(opened[0], error) from error
        return requests

    def _places(self, requests: list[Request], starts: list[int], out: memoryview) -> Places:
        """Return the places of the samples read; with `verify`, their checksums are checked."""
        verify = self._check is not None
        flat: list[int] = []
        try:
            if len(requests) == 1:
                (opened, index, count, _, size), start = requests[0], starts[0]
                extents = opened[2].samples(index, count, out[start : start + size], verify)
                return shifted(np.asarray(extents, np.int64), start)
            for (opened, index, count, _, size), start in zip(requests, starts, strict=True):
                extents = opened[2].samples(index, count, out[start : start + size], verify)
                for offset, sample_bytes in extents.tolist() if isinstance(extents, np.ndarray) else extents:
                    flat += (start + offset, sample_bytes)
        except base.DamagedError as error:
            raise base.read_failure(opened[0], error) from error
        return as_places(flat)

    def _opened_file(self, file: int) -> OpenRecords:
        """Return an open file; if that opens it, the least recently used file may be closed."""
        opened = self._open.get(file)
        if opened is None:
            while len(self._open) >= self._max_open:
                _, (_, reader, _) = self._open.popitem(last=False)
                reader.close()
            opened = self._open[file] = self._open_file(file)
        else:
            self._open.move_to_end(file)
        return opened

    def close(self) -> None:
        _close_all(self._open)

    def located(self, file: int) -> tuple[int, base.Offsets | None]:
        """Return the bytes of the largest record of a file, and the offsets of records if they had to be looked for."""
        opened = self._open_source(file)
        with contextlib.closing(opened.source), base.reading(opened.source.path):
            offsets = self._format.locate(opened)
            return self._format.open_records(opened._replace(offsets=offsets)).largest_bytes(), offsets

    def _open_file(self, file: int) -> OpenRecords:
        opened = self._open_source(file)
        source = opened.source
        try:
            with base.reading(source.path):
                return source.path, source.reader, self._format.open_records(opened)
        except BaseException:
            source.close()
            raise

    def _open_source(self, file: int) -> base.RecordInputs:
        """Open a file without looking at its records."""
        path = self._layout.path(file)
        reader = self._open_reader(path, mapped=self._format.mapped)
        if self._matched and self._format.looks_up and not self._format.mapped:
            reader = ReopenedReader(reader, partial(self._storage.open, path))
        if self._matched and self._format.stream_calls is not None:
            reader = StreamedReader(reader, self._format.stream_calls, self._format.tail_bytes)
        source = base.Source(path, reader, self._storage.alignment, self._transfer_bytes)
        source.size_bytes = min(self._layout.used_bytes or source.size_bytes, source.size_bytes)
        open_side = partial(self._open_side, file)
        return base.RecordInputs(source, self._samples_per_file, open_side, self._offsets.get(path), self._matched)

    def _open_side(self, file: int, number: int) -> base.Source | None:
        """Open a side file, which is closed when its source is garbage-collected; None if it does not exist."""
        path = self._format.sides[number].path(self._layout, file)
        try:
            reader = self._open_reader(path, mapped=self._matched or self._format.mapped)  # libraries map indexes, too
        except DatasetError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        source = base.Source(path, reader, self._storage.alignment, self._transfer_bytes)
        weakref.finalize(source, reader.close)
        return source

    def _open_reader(self, path: str, *, mapped: bool) -> Reader:
        try:
            return self._storage.open_mapped(path) if mapped else self._storage.open(path)
        except OSError as error:
            raise base.unreadable(path, error) from error


class ReopenedReader(Reader):
    """A `Reader` that opens the file for each call, so that the kernel's read-ahead keeps no state between calls."""

    def __init__(self, reader: Reader, reopen: Callable[[], Reader]) -> None:
        super().__init__(reader.size_bytes)
        self._reopen = reopen
        reader.close()

    def read_into(self, buffer: memoryview, offset: int) -> int:
        reader = self._reopen()
        try:
            got = reader.read_into(buffer, offset)
            self.read_calls += reader.read_calls
            self.app_bytes += got
            return got
        finally:
            reader.close()


class StreamedReader(Reader):
    """A `Reader` that makes the calls of a library that streams files regardless of record boundaries (`StreamCalls`).

    The last piece read stays in memory and serves the reads within it and after it. With calls of 256 KiB:

        read_into(100 KiB, at 0)          one call: piece 0-256 KiB; copies 0-100 KiB
        read_into(100 KiB, at 100 KiB)    no call; copies 100-200 KiB
        read_into(100 KiB, at 200 KiB)    copies 200-256 KiB; one call: piece 256-512 KiB; copies 256-300 KiB

    A read elsewhere restarts the stream there or, if it is shorter than `min_stream_bytes`, makes the calls of Python's
    buffered files, as a script with an index does.
    """

    def __init__(self, reader: Reader, calls: base.StreamCalls, tail_bytes: int) -> None:
        super().__init__(reader.size_bytes)
        self._reader = reader
        self._calls = calls
        self._tail_bytes = tail_bytes
        self._plan_calls(calls.sizes(reader.block_bytes))
        self._piece = memoryview(bytearray())  # the last piece read, which begins with bytes `_begin` to `_end`
        self._begin = self._end = 0
        self._next_offset = 0  # where the last read ended: a read from there on is sequential
        self._by_index = False

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if offset != self._next_offset or self._by_index:
            self._seek(offset, len(buffer))
        got = self._copy(buffer, offset) if offset < self._end else 0
        calls_before = self._reader.read_calls
        while got < len(buffer) and self._end < self.size_bytes:
            got += self._read_next(buffer[got:])
        self._next_offset = offset + got
        # Behind the last record, the library reads the tail of the file, too
        while not self._by_index and self._end < self.size_bytes <= self._next_offset + self._tail_bytes:
            self._read_next(memoryview(b""))
        self.read_calls += self._reader.read_calls - calls_before
        self.app_bytes += got
        return got

    def close(self) -> None:
        self._reader.close()

    def _seek(self, offset: int, size_bytes: int) -> None:
        """Prepare for a read that is not sequential: reposition the stream, or switch to reading by an index."""
        if not self._begin <= offset <= self._end:
            self._begin = self._end = offset
        elif not self._by_index:
            return
        self._by_index = size_bytes < self._calls.min_stream_bytes
        if self._by_index:
            missing = offset + size_bytes - self._end
            sizes = (missing,) if self._end > offset else (HEAD_BYTES, missing - HEAD_BYTES)
            self._plan_calls(python_calls(sizes, self._reader.block_bytes))
        else:
            self._plan_calls(self._calls.sizes(self._reader.block_bytes))

    def _plan_calls(self, sizes: Iterator[int]) -> None:
        """Set the bytes that the next calls request; 0 after the last one: as many as the buffer has."""
        self._sizes = sizes
        self._size = next(sizes, 0)

    def _copy(self, out: memoryview, offset: int) -> int:
        """Copy bytes of the piece from `offset` on to `out`, as many as the piece has; return their number."""
        size, start = min(len(out), self._end - offset), offset - self._begin
        if size:
            out[:size] = self._piece[start : start + size]
        return size

    def _read_next(self, out: memoryview) -> int:
        """Make the library's next calls, as many as fit into `out`, else one; return the bytes added to `out`."""
        size, offset = self._size or max(1, len(out)), self._end
        if size <= min(len(out), self.size_bytes - offset):
            return self._read_several(out)
        self._size = next(self._sizes, 0)
        if size <= len(out):
            got = self._read(out[:size], offset)
            self._begin = self._end = offset + got
            return got
        if len(self._piece) < size:
            self._piece = memoryview(bytearray(size))
        got = self._read(self._piece[:size], offset)
        self._begin, self._end = offset, offset + got
        return self._copy(out, offset)

    def _read_several(self, out: memoryview) -> int:
        """Make the calls that fit into `out` and end within the file, with as little work for each as possible."""
        begin = offset = self._end
        end, size, sizes = min(begin + len(out), self.size_bytes), self._size or len(out), self._sizes
        ranges = []
        while size and offset + size <= end:
            ranges.append((offset, size))
            offset += size
            size = next(sizes, 0)
        self._size = size
        got = self._reader.read_stretches(ranges, out[: offset - begin])
        self._begin = self._end = begin + got
        if got < offset - begin:
            self.size_bytes = self._end  # the file is shorter than it was when it was opened
        return got

    def _read(self, target: memoryview, offset: int) -> int:
        got = self._reader.read_into(target, offset)
        if got < min(len(target), self.size_bytes - offset):
            self.size_bytes = offset + got  # the file is shorter than it was when it was opened
        elif got < len(target) and self._calls.retries_short_reads:
            self._reader.read_into(target[got:], offset + got)
        return got


def _close_all(opened: OrderedDict[int, OpenRecords]) -> None:
    while opened:
        _, (_, reader, _) = opened.popitem()
        with contextlib.suppress(OSError):
            reader.close()


def located_records(
    file_format: base.RecordFormat, layout: Layout, storage: StorageBase
) -> tuple[int, dict[str, base.Offsets]]:
    """Read each file or its index; return the bytes of the largest record, and offsets by path. Raises DatasetError."""
    from datagen.thread_pool import of_each  # imported here, because the workers of a training need no thread pool

    by_file = of_each(range(layout.num_files), RecordReader(storage, file_format, layout).located)
    offsets = {layout.path(file): known for file, (_, known) in enumerate(by_file) if known is not None}
    return max(largest for largest, _ in by_file), offsets
