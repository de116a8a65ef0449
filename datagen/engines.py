"""Engines read samples into memory: through reused buffers, by a library call, or not at all (null storage)."""

from __future__ import annotations

import abc
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from datagen.buffers import AlignedBuffer, FileMemory
from datagen.errors import DlemuError
from datagen.formats._buffered import BufferedFile
from datagen.formats.format_base import (
    MAX_KEPT_FILES,
    FormatBase,
    OpenFile,
    Sample,
    Source,
    ended_early,
    read_failure,
    reading,
)
from datagen.storage.storage_base import Reader, StorageBase, read_in_transfers

T = TypeVar("T")
READER_VERSION = 1
"""Incremented whenever the read calls of an engine change."""


class Engine:
    """Reads files; counts bytes, read calls and time in reads since it was created."""

    app_bytes = 0  # bytes that read calls returned; the device may have read more (read-ahead) or fewer (page cache)
    read_calls = 0
    read_ns = 0

    def finish(self) -> None:
        """End a batch: close files that do not stay open, and release the samples read."""

    def close(self) -> None:
        """Close all files."""
        self.finish()

    def count(self, app_bytes: int, read_calls: int, read_ns: int = 0) -> None:
        """Add reads."""
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        self.read_ns += read_ns


class SampleEngine(Engine, abc.ABC):
    """Reads samples one by one."""

    @abc.abstractmethod
    def read(self, path: str, index: int, out: memoryview) -> Sample:
        """Return a sample of a file, valid until the next call. It is in `out` (aligned memory) where possible.

        Raises DatasetError if the file is missing, unreadable or damaged.
        """


class FastEngine(SampleEngine):
    """Reads by the format's `open`; consecutive samples of a batch from one file share one read of the file.

    Of files of several samples that may stay open, the last few do so between batches. With `matched`, the engine makes
    the read calls of the format's library instead of its own.
    """

    def __init__(
        self,
        storage: StorageBase,
        file_format: FormatBase,
        samples: int,
        max_file_bytes: int,
        transfer_bytes: int = 0,
        *,
        matched: bool = False,
    ) -> None:
        self._storage = storage
        self._format = file_format
        self._samples = samples
        self._transfer_bytes = transfer_bytes
        self._matched = matched
        self._whole = samples == 1 or not file_format.reads_parts
        self._parse_matched = file_format.parse_matched if matched else None
        self._by_one_call = samples == 1 and not file_format.reads_parts and self._parse_matched is None
        self._open: tuple[str, Source | None, OpenFile] | None = None
        self._kept: OrderedDict[str, tuple[Source, OpenFile]] = OrderedDict()
        self._memory = FileMemory(storage.alignment, max_file_bytes)
        self._expected: list[str] = []

    def read(self, path: str, index: int, out: memoryview) -> Sample:
        try:
            opened = self._open
            if opened is None or path != opened[0]:
                opened = self._open = self._opened(path, out)
            return opened[2].sample(index)
        except DlemuError:
            raise
        except Exception as error:
            raise read_failure(path, error) from error

    def _opened(self, path: str, out: memoryview) -> tuple[str, Source | None, OpenFile]:
        """Open a file, or take it from those kept open."""
        self.finish()
        # Several samples share the bytes of a file, so these can't be read into the memory of one of them
        self._memory.reuse(out if self._samples == 1 else memoryview(b""))
        if path in self._kept:
            return path, *self._kept.pop(path)
        begun = time.monotonic_ns()
        if self._whole and self._expected:
            while self._expected and self._expected.pop(0) != path:
                pass
            self._storage.announce([path, *self._expected])
        reader = self._storage.open_whole(path) if self._whole else self._storage.open(path)
        if self._by_one_call:
            return path, None, self._format.parse(self._read_whole(path, reader, begun), 1, self._memory.scratch)
        self.read_ns += time.monotonic_ns() - begun  # for small files on a network, opening takes most of the time
        source = Source(path, reader, self._storage.alignment, self._transfer_bytes, self._memory)
        try:
            if self._parse_matched is not None:
                return path, source, self._parse_matched(BufferedFile(source), self._samples, source.scratch)
            return path, source, self._format.open(source, self._samples, matched=self._matched)
        except BaseException:
            self.count(*source.counts())
            source.close()
            raise

    def _read_whole(self, path: str, reader: Reader, begun_ns: int) -> memoryview:
        """Return all bytes of a file, and close it: for small files, a `Source` costs a fifth of the CPU of a read."""
        try:
            size, alignment = reader.size_bytes, self._storage.alignment
            target = self._memory.take(-(-size // alignment) * alignment)
            got = read_in_transfers(reader, target, 0, self._transfer_bytes)
        finally:
            reader.close()
            self.app_bytes += reader.app_bytes
            self.read_calls += reader.read_calls
            self.read_ns += time.monotonic_ns() - begun_ns
        if got < size:
            raise ended_early(path, size - got, got)
        return target[:size]

    def expect(self, paths: Sequence[str]) -> None:
        """Set the files of the next batch, in reading order, so that the storage can request several at once."""
        self._expected = list(dict.fromkeys(paths))

    def finish(self) -> None:
        if self._open is None:
            return
        (_, source, opened), self._open = self._open, None
        if source is None:
            return
        self.count(*source.counts())
        if self._samples == 1 or not opened.stays_open:
            source.close()
            return
        opened.forget()
        self._kept[source.path] = source, opened
        if len(self._kept) > MAX_KEPT_FILES:
            self._kept.popitem(last=False)[1][0].close()

    def close(self) -> None:
        self.finish()
        while self._kept:
            self._kept.popitem()[1][0].close()

    def __del__(self) -> None:
        self.close()


def by_library(engine: Engine, storage: StorageBase, path: str, load: Callable[[str], T]) -> T:
    """Return what a library makes of a file of this host, given its path; add its reads to those of an engine.

    Bytes and calls are those that the kernel counts for this thread. Within the library's call, CPU time counts as
    decoding and the rest as reading. Raises as `read_failure`.
    """
    wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
    with reading(path), _thread_reads(engine):
        loaded = load(storage.local_path(path) or path)
    engine.read_ns += max(0, time.monotonic_ns() - wall_ns - (time.thread_time_ns() - cpu_ns))
    return loaded


class LibraryEngine(SampleEngine):
    """Reads by the library call that a training script would make."""

    def __init__(self, storage: StorageBase, file_format: FormatBase, samples: int) -> None:
        self._storage = storage
        self._format = file_format
        self._samples = samples

    def read(self, path: str, index: int, out: memoryview) -> Sample:
        return by_library(self, self._storage, path, lambda local: self._format.load(local, index, self._samples))


@contextlib.contextmanager
def _thread_reads(engine: Engine) -> Iterator[None]:
    """Add the bytes and calls of this thread's reads meanwhile: rchar and syscr of /proc/thread-self/io (proc(5))."""
    descriptor = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)

    def counters() -> tuple[int, int, int]:
        """Return bytes and calls so far, and the bytes of this read itself."""
        text = os.pread(descriptor, 4096, 0)
        values = dict(line.split(b": ") for line in text.splitlines())
        return int(values[b"rchar"]), int(values[b"syscr"]), len(text)

    try:
        bytes_then, calls_then, own_bytes = counters()
        yield
        bytes_now, calls_now, _ = counters()
        engine.count(bytes_now - bytes_then - own_bytes, calls_now - calls_then - 1)
    finally:
        os.close(descriptor)


class NullEngine(SampleEngine):
    """Reads nothing: every sample has its nominal size and arbitrary bytes."""

    def __init__(self, nominal_sample_bytes: int) -> None:
        self._bytes = nominal_sample_bytes
        self._data = AlignedBuffer().view(nominal_sample_bytes)

    def read(self, path: str, index: int, out: memoryview) -> Sample:
        data = out[: self._bytes] if len(out) >= self._bytes else self._data
        return Sample(data, data, 0)
