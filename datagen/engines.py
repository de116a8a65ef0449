"""Engines read the samples of a batch into memory: by read calls of their own, by a library, or not at all."""

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
Check = Callable[[base.Sample, int], None]  # raises DatasetError if a sample differs from what its file should hold


@dataclass(frozen=True)
class ReadSettings:
    """How the samples of one split are read."""

    storage: StorageBase
    layout: Layout
    check: Check | None = None  # called with each sample and the number of its file
    transfer_bytes: int = 0  # maximum bytes of a read call; 0: no limit
    decodes: bool = False  # decode what the format encodes (pixels, numbers, compressed chunks)
    matched: bool = False  # make the read calls of the format's library, where known, instead of as few as possible
    library: bool = False  # the format's library opens and reads the files


class Engine(abc.ABC):
    """Reads samples of one split, and counts bytes, calls and time of its reads. Not thread-safe."""

    app_bytes = 0  # bytes that read calls returned; the device may have read more (read-ahead) or fewer (page cache)
    read_calls = 0
    read_ns = 0

    @abc.abstractmethod
    def read(self, samples: Samples, out: memoryview) -> Places:
        """Read samples into `out` (page-aligned); return where they are in it, in the order requested (`Places`).

        Raises DatasetError if a file is missing, unreadable, truncated or damaged; SpaceError if `out` is too small or
        too many files are open; IndexError if there is no such sample.
        """

    def finish(self) -> None:
        """End a batch: close files that do not stay open, and release the samples."""
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
    """Reads samples one by one, each into its own place: `place_bytes` bytes of the memory for a batch.

    The format's `open` or `parse` reads a file. Consecutive samples of a batch from one file share one read of it. The
    last few files of several samples stay open between batches, if the format permits.
    """

    def __init__(
        self, settings: ReadSettings, file_format: base.FormatBase, place_bytes: int, max_file_bytes: int
    ) -> None:
        self._settings, self._storage, self._layout = settings, settings.storage, settings.layout
        self._format, self._place_bytes = file_format, place_bytes
        self._samples_per_file = settings.layout.num_samples_per_file
        self._read_matched = file_format.read_matched if settings.matched else None
        reads_parts = self._read_matched is not None or (settings.matched and file_format.reads_parts)
        self._reads_whole_files = self._samples_per_file == 1 and not reads_parts
        self._path = ""  # of the current file, from which samples are taken
        self._file: base.OpenFile | None = None  # the current file
        self._source: base.Source | None = None  # of the current file; None if the file was read whole
        self._kept_open: OrderedDict[str, tuple[base.Source, base.OpenFile]] = OrderedDict()  # other files, by path
        # Samples of a file share its bytes, which therefore can't be read into the place of one sample
        shares_memory = self._samples_per_file > 1 and not settings.library
        self._memory = FileMemory(self._storage.alignment, max_file_bytes if shares_memory else 0)
        self._sizes_read: dict[str, int] = {}  # by path, of the batch's files that have been read into their places

    def read(self, samples: Samples, out: memoryview) -> Places:
        layout, place_bytes = self._layout, self._place_bytes
        located = [layout.locate(number) for number in sample_numbers(samples)]
        address = address_of(out)
        path = ""  # of the file being read
        flat = list[int]()  # offset and length of each sample in turn
        begin = 0  # where the place of the next sample begins in `out`
        try:
            if self._samples_per_file == 1 and len(located) > 1:
                self.finish()  # the current file's bytes are in a place that this batch may overwrite
            if self._reads_whole_files and self._storage.is_remote:  # request all files of the batch at once
                places = dict[str, memoryview]()
                for number, (file, _) in enumerate(located):
                    places.setdefault(layout.path(file), out[number * place_bytes : (number + 1) * place_bytes])
                self._sizes_read = dict(zip(places, self._read_files(list(places.items())), strict=True))
            for file, index in located:
                path = layout.path(file)
                data = self._read_sample(path, file, index, out[begin : begin + place_bytes])
                offset = -1 if data.readonly else address_of(data) - address
                length = len(data)
                if not 0 <= offset < len(out):  # the sample is in other memory: copy what fits its place
                    offset = begin
                    length = min(length, place_bytes)
                    place = np.frombuffer(out[begin : begin + length], np.uint8)
                    np.copyto(place, np.frombuffer(data, np.uint8)[:length])
                flat += (offset, length)
                begin += place_bytes
        except DlemuError:
            raise
        except Exception as error:
            raise read_failure(path, error) from error
        return places_from(flat)

    def _read_sample(self, path: str, file: int, index: int, place: memoryview) -> memoryview:
        """Return a sample, checked and decoded if requested, in `place` if possible; valid until the next call."""
        settings = self._settings
        if settings.library:
            load = self._format.load
            sample = by_library(self, self._storage, path, lambda local: load(local, index, self._samples_per_file))
        else:
            current = self._file
            if current is None or path != self._path:
                current = self._open(path, place)
            sample = current.sample(index)
        if settings.check is not None:
            settings.check(sample, file)
        if not settings.decodes or sample.decode is None:
            return sample.data
        decoded = sample.decode()
        if self._samples_per_file == 1:
            self.finish()  # the file's bytes are in `place`, which the decoded sample will overwrite
        return decoded

    def _read_files(self, files: Sequence[tuple[str, memoryview]]) -> list[int]:
        """Read whole files, given as (path, memory), each into its memory; return their sizes."""
        started_ns = time.monotonic_ns()
        try:
            reads = self._storage.read_files(files, self._settings.transfer_bytes)
        except OSError as error:
            raise unreadable(error.filename or files[0][0], error) from error
        self.read_ns += time.monotonic_ns() - started_ns
        for (path, memory), (size, bytes_read, calls) in zip(files, reads, strict=True):
            self.app_bytes += min(size, bytes_read)
            self.read_calls += calls
            if size > len(memory):
                problem = f"{path} has {size} bytes, more than any file had when the run started"
                raise DatasetError(f"{problem}: leave the dataset alone during a run, and run again")
            if bytes_read < size:
                raise ended_early(path, size - bytes_read, bytes_read)
        return [size for size, _, _ in reads]

    def _open(self, path: str, place: memoryview) -> base.OpenFile:
        """Open a file, which becomes the current one, and return it. If it has one sample, its bytes go to `place`."""
        self.finish()
        self._memory.begin_file(place if self._samples_per_file == 1 else memoryview(b""))
        source: base.Source | None = None
        if self._reads_whole_files:  # without a Source, which takes a fifth of the CPU time of reading a small file
            size = self._sizes_read.pop(path, None)
            if size is None:
                (size,) = self._read_files(((path, place),))
            file = self._format.parse(place[:size], 1, self._memory.scratch)
        elif path in self._kept_open:
            source, file = self._kept_open.pop(path)
        else:
            source, file = self._open_source(path)
        self._path, self._source, self._file = path, source, file
        return file

    def _open_source(self, path: str) -> tuple[base.Source, base.OpenFile]:
        """Open a file; if calls are matched and the format has `read_matched`, read it by the calls of its library."""
        started_ns = time.monotonic_ns()
        reader = self._storage.open(path)
        self.read_ns += time.monotonic_ns() - started_ns  # opening small files on a network takes most of the time
        source = base.Source(path, reader, self._storage.alignment, self._settings.transfer_bytes, self._memory)
        try:
            if self._read_matched is None:
                return source, self._format.open(source, self._samples_per_file, matched=self._settings.matched)
            buffered = BufferedFile(source)
            self._read_matched(buffered, self._samples_per_file)
            if self._settings.check is not None and self._format.compares_files:
                buffered.read_rest()
            source.reread_bytes = buffered.finish()
            return source, self._format.parse(buffered.image, self._samples_per_file, source.scratch)
        except BaseException:
            self.count(*source.counts())
            source.close()
            raise

    def finish(self) -> None:
        source, file = self._source, self._file
        self._source = self._file = None
        if source is None or file is None:
            return
        self.count(*source.counts())
        if self._samples_per_file == 1 or not file.stays_open:
            source.close()
            return
        file.forget()
        self._kept_open[self._path] = source, file
        if len(self._kept_open) > base.MAX_KEPT_FILES:
            _, (oldest, _) = self._kept_open.popitem(last=False)
            oldest.close()

    def close(self) -> None:
        self.finish()
        while self._kept_open:
            _, (source, _) = self._kept_open.popitem()
            source.close()


def by_library(engine: Engine, storage: StorageBase, path: str, load: Callable[[str], T]) -> T:
    """Call `load` with the path of a local file, count its reads for an engine, and return its result.

    Bytes and calls are those that the kernel counts for this thread (rchar and syscr, proc(5)). The CPU time of `load`
    counts as decoding, the rest of its time as reading. Raises what `read_failure` returns for an exception of `load`.
    """
    counters = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)
    try:
        bytes_before, calls_before, counter_bytes = _thread_reads(counters)
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        with reading(path):
            loaded = load(storage.local_path(path) or path)
        read_ns = max(0, time.monotonic_ns() - wall_ns - (time.thread_time_ns() - cpu_ns))
        bytes_after, calls_after, _ = _thread_reads(counters)
        # The kernel counts the first read of the counters, too
        engine.count(bytes_after - bytes_before - counter_bytes, calls_after - calls_before - 1, read_ns)
        return loaded
    finally:
        os.close(counters)


def _thread_reads(counters: int) -> tuple[int, int, int]:
    """Return the bytes and calls of this thread's reads so far, and how many bytes reading these counters took."""
    text = os.pread(counters, 4096, 0)
    values = dict(line.split(b": ") for line in text.splitlines())
    return int(values[b"rchar"]), int(values[b"syscr"]), len(text)


class NullEngine(Engine):
    """Reads nothing: every sample has its nominal size, and whatever bytes are in memory."""

    def __init__(self, sample_bytes: int, place_bytes: int) -> None:
        self._sample_bytes = sample_bytes
        self._place_bytes = place_bytes  # 0: all samples of a batch have one place, as in row groups

    def read(self, samples: Samples, out: memoryview) -> Places:
        if self._place_bytes:
            return even_places(0, self._place_bytes, self._sample_bytes, len(samples))
        return places_from([0, min(len(samples) * self._sample_bytes, len(out))])
