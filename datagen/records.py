"""Reading records: many small reads a batch, from files that stay open between batches.

Neighbouring records of a batch that are side by side in a file are read by one call. Locating and checking is the
format's (`RecordFormat`); this module knows open files, memory and the account.
"""

from __future__ import annotations

import contextlib
import resource
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np

from datagen.engines import block_bytes_of, ended_early, unreadable
from datagen.errors import SpaceError
from datagen.formats._buffered import python_calls
from datagen.formats.format_base import (
    CalledRecordFormat,
    MovedError,
    RecordFile,
    RecordFormat,
    Source,
    StreamCalls,
    StreamedRecordFormat,
)
from datagen.layout import Layout
from datagen.places import NO_PLACES, Places, as_places, shifted
from datagen.runs import Run, Runs, Samples, runs_of
from datagen.storage.storage_base import Reader, StorageBase, StorageSpec, open_storage, read_in_transfers

MOST_OPEN_FILES = 512
"""Files that a reader keeps open; enough for each file of DLIO's bert."""
SHARE_OF_LIMIT = 8
"""A reader takes one part in so many of the process's file descriptors, which it shares with others of its kind."""


OpenRecords = tuple[str, Reader, RecordFile]
"""Path of an open file, and what reads it. Plain tuples: small records are read at a few microseconds each."""
Request = tuple[OpenRecords, int, int, int, int]
"""An open file, index of a record, how many, their offset and bytes."""


class RecordReader:
    """Reads samples of one split. One thread at a time may use it."""

    def __init__(
        self,
        storage: StorageBase,
        file_format: RecordFormat,
        layout: Layout,
        verify: bool,
        transfer_bytes: int = 0,
        *,
        called: bool = False,
    ) -> None:
        """Begin; with `called` the read calls are those of the format's library, not the fewest.

        What the library reads by is known of `StreamedRecordFormat` and `CalledRecordFormat`; of others nothing is.
        """
        self.app_bytes = 0
        self.read_calls = 0
        self.read_ns = 0
        self._samples = layout.num_samples
        self._samples_per_file = layout.num_samples_per_file
        self._storage = storage
        self._alignment = storage.alignment
        self._verify = verify
        known = called and isinstance(file_format, StreamedRecordFormat | CalledRecordFormat)
        self._transfer_bytes = 0 if known else transfer_bytes
        self._files = OpenFiles(storage, file_format, layout, open_files_wanted(), self._transfer_bytes, called=known)

    def read(self, samples: Samples, out: memoryview) -> Places:
        """Read samples into `out`, as densely as the storage's alignment lets them lie; return the place of each.

        Raises:
            DatasetError: a file is gone, unreadable, truncated or damaged.
            SpaceError: `out` is too small, or too many files are open.
            IndexError: there is no such sample.
        """
        listed = samples.tolist() if isinstance(samples, np.ndarray) else samples
        if isinstance(listed, Runs):
            lowest = min((first for first, _ in listed.runs), default=0)
            highest = max((first + count - 1 for first, count in listed.runs), default=0)
        else:
            lowest, highest = min(listed, default=0), max(listed, default=0)
        if not 0 <= lowest <= highest < self._samples:
            raise IndexError(f"samples {lowest} to {highest} of {self._samples}")
        batch_runs = runs_of(listed, self._samples_per_file)
        most = self._files.most
        places: list[Places] = []
        at = 0
        for start in range(0, len(batch_runs), most):  # so that no file is closed before its turn
            at = self._read_runs(batch_runs[start : start + most], out, at, places)
        return places[0] if len(places) == 1 else np.concatenate([NO_PLACES, *places])

    def finish(self) -> None:
        """End a batch: files stay open for the next."""

    def close(self) -> None:
        """Close what is open."""
        self._files.close()

    def _read_runs(self, batch_runs: list[Run], out: memoryview, at: int, places: list[Places]) -> int:
        """Read runs one behind the other from `at` on, add the samples' places, return where the last run ends."""
        while True:
            requests = self._requests(batch_runs)
            starts, end = (self._fill_together if self._storage.is_remote else self._fill)(requests, out, at)
            try:
                places.append(self._places(requests, starts, out))
                return end
            except MovedError:  # once for each file at most
                continue

    def _requests(self, batch_runs: list[Run]) -> list[Request]:
        get, per_file = self._files.get, self._samples_per_file
        requests = []
        for first, count in batch_runs:
            file, index = divmod(first, per_file)
            opened = get(file)
            records = opened[2]
            if count > 1 and records.scattered:
                requests += [(opened, record, 1, *records.span(record, 1)) for record in range(index, index + count)]
            else:
                offset, size = records.span(index, count)
                requests.append((opened, index, count, offset, size))
        return requests

    def _fill(self, requests: list[Request], out: memoryview, at: int) -> tuple[list[int], int]:
        """Read all requests; return where each begins and the end of the last."""
        alignment, transfer_bytes, most_bytes = self._alignment, self._transfer_bytes, len(out)
        starts = []
        app_bytes = read_calls = 0
        begun = time.monotonic_ns()
        for (path, reader, _), _, _, offset, size in requests:
            before = offset % alignment
            start = at + before
            stop = -(-(start + size) // alignment) * alignment
            if stop > most_bytes:
                raise SpaceError(f"{path}: its records are larger than the {most_bytes} bytes set aside for a batch")
            calls = reader.read_calls
            try:
                got = read_in_transfers(reader, out[at:stop], offset - before, transfer_bytes)
            except OSError as error:
                raise unreadable(path, error) from error
            if got < before + size:
                raise ended_early(path, before + size - got, offset - before + got)
            read_calls += reader.read_calls - calls
            app_bytes += got
            starts.append(start)
            at = stop
        self.read_ns += time.monotonic_ns() - begun
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        return starts, at

    def _fill_together(self, requests: list[Request], out: memoryview, at: int) -> tuple[list[int], int]:
        """Do as `_fill`, with several requests in flight."""
        starts, fills = [], []
        for (path, reader, _), _, _, offset, size in requests:
            if at + size > len(out):
                raise SpaceError(f"{path}: its records are larger than the {len(out)} bytes set aside for a batch")
            fills.append((reader, out[at : at + size], offset))
            starts.append(at)
            at += size
        readers = {id(reader): reader for reader, _, _ in fills}.values()
        calls = sum(reader.read_calls for reader in readers)
        begun = time.monotonic_ns()
        try:
            sizes = self._storage.read_all(fills)
        except OSError as error:
            raise unreadable(error.filename or requests[0][0][0], error) from error
        self.read_ns += time.monotonic_ns() - begun
        self.read_calls += sum(reader.read_calls for reader in readers) - calls
        self.app_bytes += sum(sizes)
        for ((path, _, _), _, _, offset, size), got in zip(requests, sizes, strict=True):
            if got < size:
                raise ended_early(path, size - got, offset + got)
        return starts, at

    def _places(self, requests: list[Request], starts: list[int], out: memoryview) -> Places:
        verify = self._verify
        if len(requests) == 1:
            ((_, _, records), index, count, _, size), start = requests[0], starts[0]
            places = np.asarray(records.samples(index, count, out[start : start + size], verify), np.int64)
            return shifted(places, start)
        flat: list[int] = []
        for ((_, _, records), index, count, _, size), start in zip(requests, starts, strict=True):
            found = records.samples(index, count, out[start : start + size], verify)
            for place, sample_bytes in found.tolist() if isinstance(found, np.ndarray) else found:
                flat += (start + place, sample_bytes)
        return as_places(flat)


class OpenFiles:
    """The files read last, still open."""

    def __init__(
        self,
        storage: StorageBase,
        file_format: RecordFormat,
        layout: Layout,
        most: int,
        transfer_bytes: int = 0,
        *,
        called: bool = False,
    ) -> None:
        self._storage = storage
        # Libraries map the index; where nothing can be mapped, its entries are read.
        posix = called and storage.spec.type in ("posix", "mapped")
        self._sides_storage = open_storage(StorageSpec(type="mapped")) if posix else storage
        self._called = called
        self._format = file_format
        self._layout = layout
        self._transfer_bytes = transfer_bytes
        self.most = most
        self._open: OrderedDict[int, OpenRecords] = OrderedDict()
        self._closing = weakref.finalize(self, _close_all, self._open)

    def get(self, file: int) -> OpenRecords:
        """Return a file, opened if need be; the one used longest ago may be closed for it."""
        opened = self._open.get(file)
        if opened is None:
            while len(self._open) >= self.most:
                self._open.popitem(last=False)[1][1].close()
            opened = self._open[file] = self._opened(file)
        else:
            self._open.move_to_end(file)
        return opened

    def close(self) -> None:
        """Close all."""
        _close_all(self._open)

    def _opened(self, file: int) -> OpenRecords:
        path = self._layout.path(file)
        try:
            reader: Reader = self._storage.open(path)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            if self._called and isinstance(self._format, CalledRecordFormat) and not self._format.mapped:
                reader = ReopenedReader(reader, partial(self._storage.open, path))
            if self._called and isinstance(self._format, StreamedRecordFormat):
                reader = StreamedReader(reader, self._format.stream_calls)
            source = SmallReads(path, reader, self._storage.alignment, self._transfer_bytes)
            source.size_bytes = min(self._layout.used_bytes or source.size_bytes, source.size_bytes)
            side = partial(_open_side, self._sides_storage, self._format, self._layout, self._transfer_bytes, file)
            if self._called and isinstance(self._format, CalledRecordFormat):
                records = self._format.open_called_records(source, self._layout.num_samples_per_file, side)
            else:
                records = self._format.open_records(source, self._layout.num_samples_per_file, side)
        except BaseException:
            reader.close()
            raise
        return path, reader, records


class ReopenedReader:
    """Reads one file that is opened for each call, so that the kernel knows nothing of the ones before; a `Reader`."""

    def __init__(self, reader: Reader, reopen: Callable[[], Reader]) -> None:
        self.size_bytes = reader.size_bytes
        self.read_calls = self.app_bytes = 0
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

    def close(self) -> None:
        """Nothing is open."""


class StreamedReader:
    """Reads one file by the calls of a library that knows no records; a `Reader`.

    What follows on what was read before is read on; of other places as `StreamCalls` says.
    """

    def __init__(self, reader: Reader, calls: StreamCalls) -> None:
        self.size_bytes = reader.size_bytes
        self.read_calls = self.app_bytes = 0
        self._reader = reader
        self._calls = calls
        self._block_bytes = block_bytes_of(reader)
        self._sizes = calls.sizes(self._block_bytes)
        self._held = bytearray()
        self._begin = self._end = self._follows = 0
        """What of the file is held, and what comes next."""
        self._by_index = False

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if offset != self._follows or self._by_index:
            self._jump(offset, len(buffer))
        got = self._take(buffer, offset)
        while got < len(buffer) and self._end < self.size_bytes:
            got += self._call(buffer[got:])
        self._follows = offset + got
        while not self._by_index and self._end < self.size_bytes <= self._follows + self._calls.tail_bytes:
            self._call(memoryview(b""))
        self.app_bytes += got
        return got

    def close(self) -> None:
        self._reader.close()

    def _jump(self, offset: int, size_bytes: int) -> None:
        if not self._begin <= offset <= self._end:
            self._begin = self._end = offset
        elif not self._by_index:
            return
        self._by_index = size_bytes < self._calls.least_bytes
        if self._by_index:
            missing = offset + size_bytes - self._end
            sizes = (missing,) if self._end > offset else (HEAD_BYTES, missing - HEAD_BYTES)
            self._sizes = python_calls(sizes, self._block_bytes)
        else:
            self._sizes = self._calls.sizes(self._block_bytes)

    def _take(self, out: memoryview, offset: int) -> int:
        """Copy what is held of it."""
        size = max(0, min(len(out), self._end - offset))
        at = offset - self._begin
        if size:
            out[:size] = memoryview(self._held)[at : at + size]
        return size

    def _call(self, out: memoryview) -> int:
        """Make the next call; return the bytes that came to `out`, where the rest of it is wanted."""
        size, at = next(self._sizes, max(1, len(out))), self._end
        if size <= len(out):
            got = self._read(out[:size], at, size)
            self._begin = self._end = at + got
            return got
        if len(self._held) < size:
            self._held = bytearray(size)
        got = self._read(memoryview(self._held)[:size], at, size)
        self._begin, self._end = at, at + got
        return self._take(out, at)

    def _read(self, target: memoryview, offset: int, size_bytes: int) -> int:
        calls = self._reader.read_calls
        got = self._reader.read_into(target, offset)
        if got < min(size_bytes, self.size_bytes - offset):
            self.size_bytes = offset + got  # it ends before what it said
        elif got < size_bytes and self._calls.asks_again:
            self._reader.read_into(target[got:], offset + got)
        self.read_calls += self._reader.read_calls - calls
        return got


HEAD_BYTES = 16
"""A script with an index reads the length of a record, or its header, before the record."""


def _open_side(
    storage: StorageBase, file_format: RecordFormat, layout: Layout, transfer_bytes: int, file: int, number: int
) -> Source | None:
    """Open a side file for as long as its source lives."""
    path = file_format.sides[number].path(layout, file)
    try:
        reader = storage.open(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    source = SmallReads(path, reader, storage.alignment, transfer_bytes)
    weakref.finalize(source, reader.close)
    return source


def _close_all(opened: OrderedDict[int, OpenRecords]) -> None:
    while opened:
        with contextlib.suppress(OSError):
            opened.popitem()[1][1].close()


def open_files_wanted() -> int:
    """Return how many files a reader may keep open under this process's limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else max(1, min(MOST_OPEN_FILES, soft // SHARE_OF_LIMIT))


class SmallReads:
    """A `Source` for what a format must know of a file beside its records: each read gets memory of its own."""

    def __init__(self, path: str, reader: Reader, alignment: int, transfer_bytes: int = 0) -> None:
        self.path = path
        self.size_bytes = reader.size_bytes
        self.mapped: memoryview | None = getattr(reader, "mapped", None)
        self.read_ns = 0
        self._reader = reader
        self._alignment = alignment
        self._transfer_bytes = transfer_bytes

    def read(self, offset: int, size_bytes: int) -> memoryview:
        before = offset % self._alignment
        wanted = before + size_bytes
        target = _aligned(-(-wanted // self._alignment) * self._alignment, self._alignment)
        begun = time.monotonic_ns()
        try:
            got = read_in_transfers(self._reader, target, offset - before, self._transfer_bytes)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.read_ns += time.monotonic_ns() - begun
        if got < wanted:
            raise ended_early(self.path, wanted - got, offset - before + got)
        return target[before:wanted]

    def scratch(self, size_bytes: int) -> memoryview:
        return memoryview(bytearray(size_bytes))


def _aligned(size_bytes: int, alignment: int) -> memoryview:
    """Return memory that begins at a multiple of `alignment`."""
    memory = np.empty(size_bytes + alignment - 1, np.uint8)
    start = -memory.__array_interface__["data"][0] % alignment
    return memory[start : start + size_bytes].data


def largest_record_bytes(file_format: RecordFormat, layout: Layout, storage: StorageBase) -> int:
    """Return the bytes of the largest record in use, looked up in each file or its index: it takes a while.

    Raises:
        DatasetError: a file can't be read, or is damaged.
    """
    files = OpenFiles(storage, file_format, layout, 1)
    try:
        return max(files.get(file)[2].largest_bytes() for file in range(layout.num_files))
    finally:
        files.close()
