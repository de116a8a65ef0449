"""Engines read samples into memory: through reused buffers, by a library call, or not at all (null storage)."""

from __future__ import annotations

import abc
import os
import time
from collections import OrderedDict
from collections.abc import Sequence

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError, DlemuError
from datagen.formats.format_base import MAX_KEPT_FILES, FormatBase, OpenFile, Sample, Source, ended_early, unreadable
from datagen.storage.memory import MemoryReader
from datagen.storage.storage_base import LibraryFile, Reader, ReadTotals, StorageBase, StoredFile, read_in_transfers


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


class SampleEngine(Engine, abc.ABC):
    """Reads samples one by one."""

    @abc.abstractmethod
    def read(self, path: str, index: int, out: memoryview) -> Sample:
        """Return a sample of a file, valid until the next call. It is in `out` (aligned memory) where possible.

        Raises DatasetError if the file is missing, unreadable or damaged.
        """


class FastEngine(SampleEngine):
    """Reads by the format's `open`; consecutive samples of a batch from one file share one read of the file.

    Of files of several samples that may stay open, the last few do so between batches. With `called`, the engine makes
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
        called: bool = False,
    ) -> None:
        self._open: tuple[BatchSource, OpenFile] | None = None
        self._kept: OrderedDict[str, tuple[BatchSource, OpenFile]] = OrderedDict()
        self._storage = storage
        self._open_format = file_format.open_called if called else file_format.open
        self._parse_whole = file_format.parse_whole if samples == 1 and file_format.reads_whole(called=called) else None
        self._samples = samples
        self._transfer_bytes = transfer_bytes
        self._buffer = AlignedBuffer(max_file_bytes)
        self._buffer.take_pages()
        self._scratch: list[AlignedBuffer] = []
        self._expected: list[str] = []
        self._whole = True  # whether files are read in full; known for sure once the first one is open

    def read(self, path: str, index: int, out: memoryview) -> Sample:
        try:
            if self._parse_whole is not None:
                return self._parse_whole(path, self._read_whole(path, out))
            opened = self._open
            if opened is None or path != opened[0].path:
                opened = self._open = self._opened(path, out)
            return opened[1].sample(index)
        except OSError as error:
            raise unreadable(path, error) from error

    def _opened(self, path: str, out: memoryview) -> tuple[BatchSource, OpenFile]:
        """Open a file, or take it from those kept open."""
        self.finish()
        if path in self._kept:
            return self._kept.pop(path)
        begun = time.monotonic_ns()
        reader = self._open_whole(path) if self._whole else self._storage.open(path)
        self.read_ns += time.monotonic_ns() - begun  # for small files on a network, opening takes most of the time
        # Several samples share the bytes of a file, so these can't be read into the memory of one of them
        in_place = out if self._samples == 1 else None
        settings = self._storage.alignment, self._transfer_bytes
        source = BatchSource(path, reader, *settings, in_place, self._buffer, self._scratch)
        try:
            opened = self._open_format(source, self._samples)
        except BaseException:
            self._count(source)
            source.close()
            raise
        self._whole = self._samples == 1 or not opened.stays_open
        return source, opened

    def _open_whole(self, path: str) -> Reader:
        if self._expected:
            self._storage.announce([path, *self._expected_after(path)])
        return self._storage.open_whole(path)

    def _read_whole(self, path: str, out: memoryview) -> memoryview:
        """Return all bytes of a file, in `out` if they fit."""
        begun = time.monotonic_ns()
        reader = self._open_whole(path)
        try:
            size, alignment = reader.size_bytes, self._storage.alignment
            padded = -(-size // alignment) * alignment
            target = out[:padded] if padded <= len(out) else self._buffer.view(padded)
            got = read_in_transfers(reader, target, 0, self._transfer_bytes)
        finally:
            reader.close()
            self.read_ns += time.monotonic_ns() - begun
            self.app_bytes += reader.app_bytes
            self.read_calls += reader.read_calls
        if got < size:
            raise ended_early(path, size - got, got)
        return target[:size]

    def expect(self, paths: Sequence[str]) -> None:
        """Set the files of the next batch, in reading order, so that the storage can request several at once."""
        self._expected = list(dict.fromkeys(paths))

    def _expected_after(self, path: str) -> list[str]:
        """Return the files of the batch that follow `path`."""
        while self._expected and self._expected.pop(0) != path:
            pass
        return self._expected

    def _count(self, source: BatchSource) -> None:
        app_bytes, read_calls, read_ns = source.counts()
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        self.read_ns += read_ns

    def finish(self) -> None:
        if self._open is None:
            return
        (source, opened), self._open = self._open, None
        self._count(source)
        if self._samples == 1 or not opened.stays_open:
            source.close()
            return
        opened.forget()
        source.forget()
        self._kept[source.path] = source, opened
        if len(self._kept) > MAX_KEPT_FILES:
            self._kept.popitem(last=False)[1][0].close()

    def close(self) -> None:
        self.finish()
        while self._kept:
            self._kept.popitem()[1][0].close()

    def __del__(self) -> None:
        self.close()


class BatchSource(Source):
    """A file whose bytes go into `in_place` while it has space, then into `buffer`.

    Decoded bytes go into `scratch` buffers, which are added as needed and reused for the next file.
    """

    _used_scratch = 0
    _used_bytes = 0
    _counted = (0, 0, 0)

    def __init__(
        self,
        path: str,
        reader: Reader,
        alignment: int,
        transfer_bytes: int,
        in_place: memoryview | None,
        buffer: AlignedBuffer,
        scratch: list[AlignedBuffer],
    ) -> None:
        super().__init__(path, reader, alignment, transfer_bytes)
        self._in_place = in_place
        self._buffer = buffer
        self._scratch = scratch

    def counts(self) -> tuple[int, int, int]:
        """Return bytes (each counted once), calls and nanoseconds of the reads since `forget`."""
        before = self._counted
        reader = self._reader
        app_bytes, read_calls = reader.app_bytes - self.reread_bytes - before[0], reader.read_calls - before[1]
        return app_bytes, read_calls, self.read_ns - before[2]

    def forget(self) -> None:
        """Release the bytes read so far: their memory is reused."""
        self._used_scratch = self._used_bytes = 0
        self._counted = self._reader.app_bytes - self.reread_bytes, self._reader.read_calls, self.read_ns

    def scratch(self, size_bytes: int) -> memoryview:
        if self._used_scratch == len(self._scratch):
            self._scratch.append(AlignedBuffer())
        self._used_scratch += 1
        return self._scratch[self._used_scratch - 1].view(size_bytes)

    def memory(self, size_bytes: int) -> memoryview:
        """Return memory for a read, after that of earlier reads, which stays valid even if the buffer has to grow."""
        start = -(-self._used_bytes // self._alignment) * self._alignment
        self._used_bytes = start + size_bytes
        if self._in_place is not None and self._used_bytes <= len(self._in_place):
            return self._in_place[start : self._used_bytes]
        return self._buffer.view(self._used_bytes)[start:]


READER_VERSION = 1
"""Incremented whenever the read calls of an engine change."""


class LibraryEngine(SampleEngine):
    """Reads by the library call that a training script would make.

    If the storage has local paths, the format's `load` gets the path, and bytes and calls are those that the kernel
    counts for this thread. Otherwise the format gets an open file that counts its own reads (`LibraryFiles`). Within
    the library call, CPU time counts as decoding and the rest as reading.
    """

    def __init__(
        self, storage: StorageBase, file_format: FormatBase, samples: int, folder: str, *, in_parts: bool = False
    ) -> None:
        """Create the engine; `in_parts` is that of the format's `LibraryReads`."""
        self._storage = storage
        self._format = file_format
        self._samples = samples
        self._files: LibraryFiles | None = None
        if storage.local_path(folder) is None:
            self._files = LibraryFiles(storage, whole=samples == 1 or not in_parts)

    def read(self, path: str, index: int, out: memoryview) -> Sample:
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            sample = self._load(path, index) if self._files is None else self._load_open(self._files, path, index)
        except OSError as error:
            raise unreadable(path, error) from error
        except DlemuError:
            raise
        except Exception as error:  # libraries raise anything: SyntaxError, OverflowError, their own errors
            what = f"{type(error).__name__}: {str(error)[:200]}"
            raise DatasetError(f"{path} is damaged, or is not of this format: its library reports {what}") from error
        self.read_ns += max(0, time.monotonic_ns() - wall_ns - (time.thread_time_ns() - cpu_ns))
        return sample

    def _load(self, path: str, index: int) -> Sample:
        with ThreadReads() as accounting:
            sample = self._format.load(self._storage.local_path(path) or path, index, self._samples)
            app_bytes, read_calls = accounting.since_start()
        self.app_bytes += app_bytes
        self.read_calls += read_calls
        return sample

    def _load_open(self, files: LibraryFiles, path: str, index: int) -> Sample:
        try:
            indexes = [files.index(path + suffix) for suffix in self._format.index_suffixes]
            return self._format.load_open(files.open(path), index, self._samples, indexes)
        except Exception:
            if files.failure is not None:
                raise files.failure from None
            raise
        finally:
            self.app_bytes, self.read_calls = files.read_totals()

    def finish(self) -> None:
        if self._files is not None:
            self._files.finish()


class LibraryFiles:
    """Opens files of a storage without local paths as training scripts do, for the libraries of formats.

    Files are opened by the client library of the storage's settings, if one is named (s3torchconnector, fsspec).
    Otherwise, with `whole`, an object is fetched into memory; else parts of it are read when requested. The last file
    stays open for further samples of a batch, and index files are kept in memory.
    """

    def __init__(self, storage: StorageBase, *, whole: bool) -> None:
        self._storage = storage
        self._whole = whole
        self._last: LibraryFile | None = None
        self._closed = ReadTotals(0, 0)
        self._indexes: OrderedDict[str, memoryview] = OrderedDict()

    def open(self, path: str, *, whole: bool = False) -> LibraryFile:
        """Open a file, to be read `whole`, or rewind it. Raises OSError, DlemuError."""
        if self._last is None or self._last.name != path:
            self.finish()
            self._last = self._open(path, whole or self._whole)
        self._last.seek(0)
        return self._last

    def index(self, path: str) -> memoryview:
        """Return the bytes of an index file. Raises OSError, DlemuError."""
        if path not in self._indexes:
            self._indexes[path] = memoryview(self.open(path, whole=True).readall())
            if len(self._indexes) > MAX_KEPT_FILES:
                self._indexes.popitem(last=False)
        return self._indexes[path]

    def read_totals(self) -> ReadTotals:
        """Return the bytes and read calls so far."""
        closed, last = self._closed, (0, 0) if self._last is None else self._last.read_totals()
        return ReadTotals(closed.app_bytes + last[0], closed.read_calls + last[1])

    @property
    def failure(self) -> Exception | None:
        """The error that reading the last opened file raised, if any."""
        return None if self._last is None else self._last.failure

    def finish(self) -> None:
        """Close the last file; index files stay in memory."""
        if self._last is not None:
            self._closed = self.read_totals()
            self._last.close()
            self._last = None

    def _open(self, path: str, whole: bool) -> LibraryFile:
        opened = self._storage.open_by_library(path, whole=whole)
        if opened is not None:
            return opened
        if whole and self._storage.is_remote:
            return FetchedFile(path, self._storage)
        return StoredFile(path, self._storage.open(path))


class FetchedFile(StoredFile):
    """An object fetched whole into memory, as scripts do: np.load(io.BytesIO(reader.read()))."""

    def __init__(self, path: str, storage: StorageBase) -> None:
        reader = storage.open_whole(path)
        try:
            data = memoryview(bytearray(reader.size_bytes))
            app_bytes = reader.read_into(data, 0)
            self._read_totals = ReadTotals(app_bytes, reader.read_calls)
        finally:
            reader.close()
        super().__init__(path, MemoryReader(data))

    def read_totals(self) -> ReadTotals:
        return self._read_totals


class ThreadReads:
    """Counts the bytes and calls of this thread's reads: rchar and syscr of /proc/thread-self/io (proc(5))."""

    def __enter__(self) -> ThreadReads:
        self._descriptor = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)
        self._start = self._counters()
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._descriptor)

    def since_start(self) -> tuple[int, int]:
        """Return bytes and calls since the start, without those of reading the counters."""
        bytes_now, calls_now, _ = self._counters()
        bytes_then, calls_then, counters_bytes = self._start
        return bytes_now - bytes_then - counters_bytes, calls_now - calls_then - 1

    def _counters(self) -> tuple[int, int, int]:
        """Return bytes and calls so far, and the bytes of this read itself."""
        text = os.pread(self._descriptor, 4096, 0)
        values = dict(line.split(b": ") for line in text.splitlines())
        return int(values[b"rchar"]), int(values[b"syscr"]), len(text)


class NullEngine(SampleEngine):
    """Reads nothing: every sample has its nominal size and arbitrary bytes."""

    def __init__(self, nominal_sample_bytes: int) -> None:
        self._bytes = nominal_sample_bytes
        self._data = AlignedBuffer().view(nominal_sample_bytes)

    def read(self, path: str, index: int, out: memoryview) -> Sample:
        data = out[: self._bytes] if len(out) >= self._bytes else self._data
        return Sample(data, data, 0)
