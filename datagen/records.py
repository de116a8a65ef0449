"""Reading samples that are records of larger files: many small reads per batch, from files that stay open.

The first half reads records in as few calls as possible: samples that are adjacent in a file by one call.
`RecordReader` keeps files open, places records in memory and counts bytes, calls and time; the format (`RecordFormat`)
locates and checks records. The second half makes the read calls of a format's library instead.
"""

from __future__ import annotations

import contextlib
import resource
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from datagen.engines import Engine, ReadSettings
from datagen.errors import SpaceError, ended_early, read_failure, reading, unreadable
from datagen.formats import format_base as base
from datagen.formats._source import python_calls
from datagen.layout import NO_PLACES, Layout, Places, Run, Samples, cut_runs, places_from, sample_numbers
from datagen.storage.storage_base import Fill, Reader, StorageBase, read_in_transfers

MAX_OPEN_FILES = 512  # maximum files that a reader keeps open; enough for all files of DLIO's bert
HEAD_BYTES = 16  # bytes of a record that a script with an index reads first: its length or header

Range = tuple[base.Source, int, int]  # (open file, offset, bytes)
RecordRange = tuple[base.RecordFile, int, int]  # (open file, index of the first record, number of consecutive records)


class RangeReader(Engine):
    """Reads byte ranges of open files. If `matched`, it makes the read calls of the format's usual library."""

    def __init__(self, settings: ReadSettings, *, matched: bool) -> None:
        self._storage, self._layout, self._check = settings.storage, settings.layout, settings.check
        self._matched = matched
        self._alignment = settings.storage.alignment
        self._transfer_bytes = 0 if matched else settings.transfer_bytes

    def fill(self, ranges: Sequence[Range], out: memoryview, position: int) -> tuple[list[int], int]:
        """Read all ranges into `out`, from `position` on; return the start of each in `out`, and the end of the last.

        Reads begin and end with whole blocks. With blocks of 512 bytes, a range of 100 bytes at offset 700 is read with
        the block at offset 512, and so starts at `position` + 188.
        Raises DatasetError if a file can't be read, or ends too early; SpaceError if `out` is too small.
        """
        alignment, transfer_bytes = self._alignment, self._transfer_bytes
        starts: list[int] = []
        fills: list[Fill] = []
        sizes_read: list[int] = []
        begin = position
        for source, offset, size in ranges:
            before = offset % alignment  # bytes of the first block that precede the range
            end = position + before + size
            block_end = end + -end % alignment  # the next multiple of the alignment
            if block_end > len(out):
                reserved = f"the {len(out)} bytes reserved for a batch"
                raise SpaceError(f"{source.path}: its records are larger than {reserved}")
            starts.append(position + before)
            fills.append((source.reader, out[position:block_end], offset - before))
            position = block_end
        readers = {reader for reader, _, _ in fills}
        calls_before = sum(reader.read_calls for reader in readers)
        started_ns = time.monotonic_ns()
        try:
            if self._storage.is_remote:
                sizes_read = self._storage.read_all(fills)
            else:
                for reader, buffer, offset in fills:
                    sizes_read.append(read_in_transfers(reader, buffer, offset, transfer_bytes))
        except OSError as error:
            raise unreadable(error.filename or ranges[len(sizes_read)][0].path, error) from error
        calls = sum(reader.read_calls for reader in readers) - calls_before
        total_bytes = sum(sizes_read)
        self.count(total_bytes, calls, time.monotonic_ns() - started_ns)
        if total_bytes < position - begin:  # a file ends within a range, or in the last block of one
            for (source, offset, size), bytes_read in zip(ranges, sizes_read, strict=True):
                missing_bytes = offset % alignment + size - bytes_read
                if missing_bytes > 0:
                    raise ended_early(source.path, missing_bytes, offset + size - missing_bytes)
        return starts, position


class RecordReader(RangeReader):
    """Reads samples of one split, and keeps the most recently used files open. Not thread-safe."""

    def __init__(
        self, settings: ReadSettings, file_format: base.RecordFormat, offsets: Mapping[str, base.Offsets]
    ) -> None:
        """`offsets` holds, by path, where the records begin in each file whose records differ in length."""
        matched = settings.matched and (file_format.looks_up or file_format.stream_calls is not None)
        super().__init__(settings, matched=matched)
        self._format, self._offsets = file_format, offsets
        self._samples_per_file = self._layout.num_samples_per_file
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft // 8  # a process may have several readers
        self._max_open = max(1, min(MAX_OPEN_FILES, limit))
        self._open: OrderedDict[int, base.RecordFile] = OrderedDict()

    def read(self, samples: Samples, out: memoryview) -> Places:
        """See `Engine.read`. Samples are packed as densely as the storage's alignment permits."""
        runs = cut_runs(samples, self._samples_per_file)
        places: list[Places] = []
        position = 0  # in `out`
        max_runs = self._max_open  # a run needs one open file: no file is closed before it has been read
        for begin in range(0, len(runs), max_runs):
            requests, ranges = self._locate(runs[begin : begin + max_runs])
            starts, position = self.fill(ranges, out, position)
            places.append(self._places(requests, ranges, starts, out))
        all_places = places[0] if len(places) == 1 else np.concatenate([NO_PLACES, *places])
        if self._check is not None:
            for sample, (start, size) in zip(sample_numbers(samples), all_places.tolist(), strict=True):
                file, index = divmod(sample, self._samples_per_file)
                data = out[start : start + size]
                self._check(base.Sample(data, data, index * size), file)
        return all_places

    def _locate(self, runs: list[Run]) -> tuple[list[RecordRange], list[Range]]:
        """Return the records to read, and the byte range of each: all of a run in one range, unless scattered."""
        requests: list[RecordRange] = []
        ranges: list[Range] = []
        total = self._layout.num_samples
        for first, count in runs:
            if not 0 <= first <= first + count <= total:
                raise IndexError(f"samples {first} to {first + count - 1} of {total}")
            file, index = divmod(first, self._samples_per_file)
            record_file = self._open_file(file)
            try:
                if count > 1 and record_file.scattered:
                    for record in range(index, index + count):
                        requests.append((record_file, record, 1))
                        ranges.append((record_file.source, *record_file.span(record, 1)))
                else:
                    requests.append((record_file, index, count))
                    ranges.append((record_file.source, *record_file.span(index, count)))
            except base.DamagedError as error:
                raise read_failure(record_file.source.path, error) from error
        return requests, ranges

    def _places(self, requests: list[RecordRange], ranges: list[Range], starts: list[int], out: memoryview) -> Places:
        """Return the places of samples in `out`, which holds the ranges; check checksums if `reader.verify` is set."""
        verify = self._check is not None
        flat: list[int] = []
        try:
            if len(requests) == 1:  # saves the loop over the samples of a long run
                record_file, index, count = requests[0]
                start = starts[0]
                size = ranges[0][2]
                places = np.array(record_file.samples(index, count, out[start : start + size], verify), np.int64)
                places[:, 0] += start
                return places
            for (record_file, index, count), (_, _, size), start in zip(requests, ranges, starts, strict=True):
                extents = record_file.samples(index, count, out[start : start + size], verify)
                for offset, sample_bytes in extents.tolist() if isinstance(extents, np.ndarray) else extents:
                    flat += (start + offset, sample_bytes)
        except base.DamagedError as error:
            raise read_failure(record_file.source.path, error) from error
        return places_from(flat)

    def _open_file(self, file: int) -> base.RecordFile:
        """Return an open file, after closing the least recently used one if too many are open."""
        record_file = self._open.get(file)
        if record_file is not None:
            self._open.move_to_end(file)
            return record_file
        started_ns = time.monotonic_ns()
        while len(self._open) >= self._max_open:
            _, oldest = self._open.popitem(last=False)
            oldest.source.close()
        inputs = self._open_inputs(file)
        try:
            with reading(inputs.source.path):
                record_file = self._open[file] = self._format.open_records(inputs)
        except BaseException:
            inputs.source.close()
            raise
        self.read_ns += time.monotonic_ns() - started_ns
        return record_file

    def close(self) -> None:
        while self._open:
            _, record_file = self._open.popitem()
            with contextlib.suppress(OSError):
                record_file.source.close()

    def inspect_file(self, file: int) -> tuple[int, base.Offsets | None]:
        """Return the bytes of a file's largest record, and the offsets of its records (`RecordFormat.locate`)."""
        inputs = self._open_inputs(file)
        with contextlib.closing(inputs.source), reading(inputs.source.path):
            offsets = self._format.locate(inputs)
            return self._format.open_records(inputs._replace(offsets=offsets)).largest_bytes(), offsets

    def _open_inputs(self, file: int) -> base.RecordInputs:
        """Open a file, with a reader that makes the calls of the format's library if calls are to be matched."""
        path, file_format = self._layout.path(file), self._format
        with reading(path):
            reader = self._storage.open_mapped(path) if file_format.mapped else self._storage.open(path)
        if self._matched and file_format.looks_up and not file_format.mapped:
            reader = ReopenedReader(reader, partial(self._storage.open, path))
        if self._matched and file_format.stream_calls is not None:
            reader = StreamedReader(reader, file_format.stream_calls, file_format.tail_bytes)
        source = base.Source(path, reader, self._alignment, self._transfer_bytes)
        if self._layout.used_bytes:
            source.size_bytes = min(self._layout.used_bytes, source.size_bytes)
        open_side = partial(self._open_side, file)
        return base.RecordInputs(source, self._samples_per_file, open_side, self._offsets.get(path), self._matched)

    def _open_side(self, file: int, number: int) -> base.Source | None:
        """Open a side file; None if there is none. The file is closed when its source is garbage-collected."""
        path = self._format.sides[number].path(self._layout, file)
        mapped = self._matched or self._format.mapped  # libraries map indexes, too
        with reading(path), contextlib.suppress(FileNotFoundError):
            reader = self._storage.open_mapped(path) if mapped else self._storage.open(path)
            source = base.Source(path, reader, self._alignment, self._transfer_bytes)
            weakref.finalize(source, reader.close)
            return source
        return None


def locate_records(
    file_format: base.RecordFormat, layout: Layout, storage: StorageBase
) -> tuple[int, dict[str, base.Offsets]]:
    """Read each file or its index; return the bytes of the largest record, and offsets by path. Raises DatasetError."""
    from datagen.thread_pool import map_in_threads  # here, because the workers of a training need no thread pool

    reader = RecordReader(ReadSettings(storage, layout), file_format, {})
    by_file = map_in_threads(reader.inspect_file, range(layout.num_files))
    offsets_by_path = {layout.path(file): offsets for file, (_, offsets) in enumerate(by_file) if offsets is not None}
    return max(largest for largest, _ in by_file), offsets_by_path


# From here on: readers that make the read calls of a format's library, instead of those that `RecordReader` requests
class ReopenedReader(Reader):
    """A `Reader` that opens the file for each call, so that the kernel's read-ahead keeps no state between calls."""

    def __init__(self, reader: Reader, reopen: Callable[[], Reader]) -> None:
        super().__init__(reader.size_bytes)
        self._reopen = reopen
        reader.close()

    def read_into(self, buffer: memoryview, offset: int) -> int:
        reader = self._reopen()
        try:
            bytes_read = reader.read_into(buffer, offset)
            self.read_calls += reader.read_calls
            self.app_bytes += bytes_read
            return bytes_read
        finally:
            reader.close()


class StreamedReader(Reader):
    """A `Reader` that makes the calls of a library that streams files regardless of record boundaries (`StreamCalls`).

    The bytes of the last call stay in memory as a read-ahead buffer. A seek outside of it restarts the stream there. If
    the read is shorter than `min_stream_bytes`, it makes the calls of a Python script with an index of records instead.
    """

    def __init__(self, reader: Reader, calls: base.StreamCalls, tail_bytes: int) -> None:
        super().__init__(reader.size_bytes)
        self._reader = reader
        self._calls = calls
        self._tail_bytes = tail_bytes
        self._later_sizes = calls.sizes(reader.block_bytes)  # bytes that the calls after the next one request
        self._next_size = next(self._later_sizes, 0)  # bytes that the next call requests; 0: all that the caller lacks
        self._buffer = memoryview(bytearray())  # begins with bytes `_start` to `_end` of the file, the last call's
        self._start = self._end = 0
        self._next_offset = 0  # where the last read ended: a read from there on is sequential
        self._looks_up = False  # the reads are those of a script with an index

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if offset != self._next_offset or self._looks_up:
            self._seek(offset, len(buffer))
        bytes_read = self._copy(buffer, offset) if offset < self._end else 0
        calls_before = self._reader.read_calls
        while bytes_read < len(buffer) and self._end < self.size_bytes:
            out = buffer[bytes_read:]
            size = self._next_size or len(out)
            if size <= min(len(out), self.size_bytes - self._end):  # the call fits: it needs no buffer
                bytes_read += self._read_directly(out)
            else:
                self._fill_buffer(size)
                bytes_read += self._copy(out, self._start)
        self._next_offset = offset + bytes_read
        # After the last record, the library reads the tail of the file, too
        while not self._looks_up and self._end < self.size_bytes <= self._next_offset + self._tail_bytes:
            self._fill_buffer(self._next_size or 1)
        self.read_calls += self._reader.read_calls - calls_before
        self.app_bytes += bytes_read
        return bytes_read

    def close(self) -> None:
        self._reader.close()

    def _seek(self, offset: int, size_bytes: int) -> None:
        """Prepare a read that is not sequential: choose the library's calls, or those of a script with an index."""
        is_buffered = self._start <= offset <= self._end
        if is_buffered and not self._looks_up:
            return  # the stream continues from the buffer
        if not is_buffered:
            self._start = self._end = offset
        self._looks_up = size_bytes < self._calls.min_stream_bytes
        if self._looks_up:
            missing_bytes = offset + size_bytes - self._end
            # The script reads the header first, unless that is in the buffer
            sizes = (missing_bytes,) if self._end > offset else (HEAD_BYTES, missing_bytes - HEAD_BYTES)
            self._later_sizes = python_calls(sizes, self._reader.block_bytes)
        else:
            self._later_sizes = self._calls.sizes(self._reader.block_bytes)
        self._next_size = next(self._later_sizes, 0)

    def _copy(self, out: memoryview, offset: int) -> int:
        """Copy the buffer's bytes from file offset `offset` on to `out`; return how many."""
        start = offset - self._start
        size = min(len(out), self._end - offset)
        if size:
            out[:size] = self._buffer[start : start + size]
        return size

    def _fill_buffer(self, size: int) -> None:
        """Replace the contents of the buffer by the next call, which requests `size` bytes."""
        offset = self._end
        self._next_size = next(self._later_sizes, 0)
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(size))
        bytes_read = self._reader.read_into(self._buffer[:size], offset)
        if bytes_read < min(size, self.size_bytes - offset):
            self.size_bytes = offset + bytes_read  # the file is shorter than it was when it was opened
        elif bytes_read < size and self._calls.retries_short_reads:
            self._reader.read_into(self._buffer[bytes_read:size], offset + bytes_read)
        self._start = offset
        self._end = offset + bytes_read

    def _read_directly(self, out: memoryview) -> int:
        """Make all calls that fit into `out` and end within the file, by one `read_stretches`, to save CPU time."""
        start = offset = self._end
        end = min(start + len(out), self.size_bytes)
        size = self._next_size or len(out)
        ranges = []
        while size and offset + size <= end:
            ranges.append((offset, size))
            offset += size
            size = next(self._later_sizes, 0)
        self._next_size = size
        bytes_read = self._reader.read_stretches(ranges, out[: offset - start])
        self._start = self._end = start + bytes_read
        if bytes_read < offset - start:
            self.size_bytes = self._end  # the file is shorter than it was when it was opened
        return bytes_read
