"""Engines read the samples of a batch into memory: through reused buffers, by a library call, or not at all."""

from __future__ import annotations

import abc
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from datagen.buffers import FileMemory, address_of
from datagen.errors import DatasetError, DlemuError, ended_early, read_failure, reading, unreadable
from datagen.formats import format_base as base
from datagen.formats._source import BufferedFile
from datagen.layout import Layout, Places, Samples, even_places, places_from, sample_numbers
from datagen.storage.storage_base import StorageBase

T = TypeVar("T")
READER_VERSION = 1  # incremented whenever the read calls of an engine change
Check = Callable[[base.Sample, int], None]  # compares a sample of a file with what was generated: DatasetError


@dataclass(frozen=True)
class ReadSettings:
    """How the samples of one split are read."""

    storage: StorageBase
    layout: Layout
    check: Check | None = None
    transfer_bytes: int = 0  # maximum bytes of a read call; 0: no maximum
    decodes: bool = False
    matched: bool = False  # by the read calls of the format's library, where known, instead of as few as possible
    library: bool = False  # by the format's library


class Engine(abc.ABC):
    """Reads samples of one split; counts bytes, read calls and time in reads since it was created. Not thread-safe."""

    app_bytes = 0  # bytes that read calls returned; the device may have read more (read-ahead) or fewer (page cache)
    read_calls = 0
    read_ns = 0

    @abc.abstractmethod
    def read(self, samples: Samples, out: memoryview) -> Places:
        """Read samples into `out` (page-aligned); return the place of each, for row groups that of each read.

        Raises:
            DatasetError: a file is missing, unreadable, truncated or damaged.
            SpaceError: `out` is too small, or too many files are open.
            IndexError: there is no such sample.
        """

    def finish(self) -> None:
        """End a batch: close files that do not stay open, and release the samples read."""
        return

    def close(self) -> None:
        """Close all files."""
        return

    def __del__(self) -> None:
        self.close()

    def count(self, app_bytes: int, read_calls: int, read_ns: int = 0) -> None:
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        self.read_ns += read_ns


class FileEngine(Engine):
    """Reads samples one by one, each into a place of its own of `place_bytes`.

    Files are read by the format's `open` or `parse`; consecutive samples of a batch from one file share one read of it.
    The last few files of several samples stay open between batches, if the format permits.
    """

    def __init__(
        self, settings: ReadSettings, file_format: base.FormatBase, place_bytes: int, max_file_bytes: int
    ) -> None:
        self._settings, self._storage, self._layout = settings, settings.storage, settings.layout
        self._format, self._place_bytes = file_format, place_bytes
        self._samples = settings.layout.num_samples_per_file
        self._read_matched = file_format.read_matched if settings.matched else None
        reads_parts = self._read_matched is not None or (settings.matched and file_format.reads_parts)
        self._by_one_call = self._samples == 1 and not reads_parts
        self._current: tuple[str, base.Source | None, base.OpenFile] | None = None  # no source: it was read by one call
        self._kept_open: OrderedDict[str, tuple[base.Source, base.OpenFile]] = OrderedDict()
        # Samples of a file share its bytes, which therefore can't be read into the place of one sample
        shares_memory = self._samples > 1 and not settings.library
        self._memory = FileMemory(self._storage.alignment, max_file_bytes if shares_memory else 0)
        self._sizes: dict[str, int] = {}  # path -> bytes of a file of this batch that has been read whole already

    def read(self, samples: Samples, out: memoryview) -> Places:
        layout, place_bytes, check = self._layout, self._place_bytes, self._settings.check
        located = [layout.locate(number) for number in sample_numbers(samples)]
        address, path = address_of(out), ""
        flat, begin = list[int](), 0
        try:
            if self._samples == 1 and len(located) > 1:
                self.finish()  # the open file's bytes are in the place of an earlier sample
            if self._by_one_call and self._storage.is_remote:  # request all files of the batch at once
                places = dict[str, memoryview]()
                for number, (file, _) in enumerate(located):
                    places.setdefault(layout.path(file), out[number * place_bytes : (number + 1) * place_bytes])
                self._sizes = dict(zip(places, self._read_files(list(places.items())), strict=True))
            for file, index in located:
                path = layout.path(file)
                sample = self._sample(path, index, out[begin : begin + place_bytes])
                if check is not None:
                    check(sample, file)
                data = sample.data
                if self._settings.decodes and sample.decode is not None:
                    data = sample.decode()
                    if layout.num_samples_per_file == 1:
                        self.finish()  # the file's bytes are in this place, which the decoded sample overwrites
                offset = -1 if data.readonly else address_of(data) - address
                length = len(data)
                if not 0 <= offset < len(out):  # the sample was decoded into other memory: copy what fits its place
                    offset, length = begin, min(length, place_bytes)
                    place = np.frombuffer(out[begin : begin + length], np.uint8)
                    np.copyto(place, np.frombuffer(data, np.uint8)[:length])
                flat += (offset, length)
                begin += place_bytes
        except DlemuError:
            raise
        except Exception as error:
            raise read_failure(path, error) from error
        return places_from(flat)

    def _sample(self, path: str, index: int, place: memoryview) -> base.Sample:
        """Return a sample of a file, valid until the next call, in `place` where possible."""
        if self._settings.library:
            return by_library(self, self._storage, path, lambda local: self._format.load(local, index, self._samples))
        if self._current is None or path != self._current[0]:
            self._current = self._opened(path, place)
        return self._current[2].sample(index)

    def _read_files(self, files: Sequence[tuple[str, memoryview]]) -> list[int]:
        """Read whole files, each into its memory; return their sizes."""
        begun = time.monotonic_ns()
        try:
            read = self._storage.read_files(files, self._settings.transfer_bytes)
        except OSError as error:
            raise unreadable(error.filename or files[0][0], error) from error
        self.read_ns += time.monotonic_ns() - begun
        for (path, place), (size, bytes_read, calls) in zip(files, read, strict=True):
            self.app_bytes += min(size, bytes_read)
            self.read_calls += calls
            if size > len(place):
                problem = f"{path} has {size} bytes, more than any file had when the run started"
                raise DatasetError(f"{problem}: leave the dataset alone during a run, and run again")
            if bytes_read < size:
                raise ended_early(path, size - bytes_read, bytes_read)
        return [size for size, _, _ in read]

    def _opened(self, path: str, place: memoryview) -> tuple[str, base.Source | None, base.OpenFile]:
        """Open a file, unless it is still open from an earlier batch."""
        self.finish()
        self._memory.reuse(place if self._samples == 1 else memoryview(b""))
        if self._by_one_call:  # without a Source, which takes a fifth of the CPU time of reading a small file
            size = self._sizes.pop(path, None)
            if size is None:
                (size,) = self._read_files(((path, place),))
            return path, None, self._format.parse(place[:size], 1, self._memory.scratch)
        if path in self._kept_open:
            return path, *self._kept_open.pop(path)
        begun = time.monotonic_ns()
        reader = self._storage.open(path)
        self.read_ns += time.monotonic_ns() - begun  # for small files on a network, opening takes most of the time
        transfer_bytes = self._settings.transfer_bytes
        source = base.Source(path, reader, self._storage.alignment, transfer_bytes, self._memory)
        try:
            if self._read_matched is not None:
                file = BufferedFile(source)
                self._read_matched(file, self._samples)
                if self._settings.check is not None and self._format.compares_files:
                    file.read_rest()
                source.reread_bytes = file.finish()
                return path, source, self._format.parse(file.image, self._samples, source.scratch)
            return path, source, self._format.open(source, self._samples, matched=self._settings.matched)
        except BaseException:
            self.count(*source.counts())
            source.close()
            raise

    def finish(self) -> None:
        if self._current is None:
            return
        path, source, opened = self._current
        self._current = None
        if source is None:
            return
        self.count(*source.counts())
        if self._samples == 1 or not opened.stays_open:
            source.close()
            return
        opened.forget()
        self._kept_open[path] = source, opened
        if len(self._kept_open) > base.MAX_KEPT_FILES:
            _, (oldest, _) = self._kept_open.popitem(last=False)
            oldest.close()

    def close(self) -> None:
        self.finish()
        while self._kept_open:
            _, (source, _) = self._kept_open.popitem()
            source.close()


def by_library(engine: Engine, storage: StorageBase, path: str, load: Callable[[str], T]) -> T:
    """Return what `load` returns for the path of a local file, and add its reads to those of an engine.

    Bytes and calls are those that the kernel counts for this thread (rchar and syscr, proc(5)). The CPU time of `load`
    counts as decoding, the rest as reading. Raises `read_failure`.
    """
    counters = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)
    try:
        bytes_before, calls_before, own_bytes = _reads_of_thread(counters)
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        with reading(path):
            loaded = load(storage.local_path(path) or path)
        read_ns = max(0, time.monotonic_ns() - wall_ns - (time.thread_time_ns() - cpu_ns))
        bytes_after, calls_after, _ = _reads_of_thread(counters)
        engine.count(bytes_after - bytes_before - own_bytes, calls_after - calls_before - 1, read_ns)
        return loaded
    finally:
        os.close(counters)


def _reads_of_thread(counters: int) -> tuple[int, int, int]:
    """Return bytes and calls so far, and the bytes of reading these counters, which the kernel counts as well."""
    text = os.pread(counters, 4096, 0)
    values = dict(line.split(b": ") for line in text.splitlines())
    return int(values[b"rchar"]), int(values[b"syscr"]), len(text)


class NullEngine(Engine):
    """Reads nothing: every sample has its nominal size and arbitrary bytes."""

    def __init__(self, sample_bytes: int, place_bytes: int) -> None:
        """With `place_bytes` of 0, a batch has one place for all its samples, as row groups have."""
        self._sample_bytes = sample_bytes
        self._place_bytes = place_bytes

    def read(self, samples: Samples, out: memoryview) -> Places:
        if self._place_bytes:
            return even_places(0, self._place_bytes, self._sample_bytes, len(samples))
        return places_from([0, min(len(samples) * self._sample_bytes, len(out))])
