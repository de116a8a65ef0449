"""Reading records: many small reads a batch, from files that stay open between batches.

Neighbouring records of a batch that lie side by side in a file are read by one call. Locating and checking is the
format's (`RecordFormat`); this module knows open files, memory and the account.
"""

from __future__ import annotations

import contextlib
import resource
import time
import weakref
from collections import OrderedDict
from functools import partial

import numpy as np

from datagen.engines import ended_early, unreadable
from datagen.errors import SpaceError
from datagen.formats.format_base import MovedError, RecordFile, RecordFormat, Source
from datagen.layout import Layout
from datagen.places import NO_PLACES, Places, as_places, shifted
from datagen.runs import Run, Runs, Samples, runs_of
from datagen.storage.storage_base import Reader, StorageBase, read_in_transfers

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
        self, storage: StorageBase, file_format: RecordFormat, layout: Layout, verify: bool, transfer_bytes: int = 0
    ) -> None:
        self.app_bytes = 0
        self.read_calls = 0
        self.read_ns = 0
        self._samples = layout.num_samples
        self._samples_per_file = layout.num_samples_per_file
        self._storage = storage
        self._alignment = storage.alignment
        self._verify = verify
        self._transfer_bytes = transfer_bytes
        self._files = OpenFiles(storage, file_format, layout, open_files_wanted(), transfer_bytes)

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
        self, storage: StorageBase, file_format: RecordFormat, layout: Layout, most: int, transfer_bytes: int = 0
    ) -> None:
        self._storage = storage
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
            reader = self._storage.open(path)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            source = SmallReads(path, reader, self._storage.alignment, self._transfer_bytes)
            side = partial(_open_side, self._storage, self._format, self._layout, self._transfer_bytes, file)
            records = self._format.open_records(source, self._layout.num_samples_per_file, side)
        except BaseException:
            reader.close()
            raise
        return path, reader, records


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
