"""The interface of a file format: compute file sizes, write files from a `Content`, read samples from a `Source`.

A format is one module with a class `Format`, a subclass of `FormatBase`, or of `RecordFormat` or `GroupFormat`
(`datagen.groups`). Terms:

- Payload: the bytes of all samples of a file in order, without framing, encoding or compression; `Content` generates it
- Side file: a file that accompanies each data file, such as an index
- Matched (`reader.engine=matched`): read by exactly the calls of the format's usual Python library, without the library
- Running index: the number of a data file among all files of the dataset; it determines the file's size and content
"""

from __future__ import annotations

import abc
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import (
    DamagedError,
    UserError,
    damaged,
    damaged_own_file,
    ended_early,
    message_without_advice,
    read_failure,
    reading,
    unreadable,
)
from datagen.formats._source import CachedSource, MemorySource, Scratch, Source, SourceStream
from datagen.layout import Layout
from datagen.spec import BLOCK_BYTES, Compression, DatasetSpec
from datagen.storage.storage_base import Writer

# Names from other modules that formats use through this one
__all__ = ["DamagedError", "damaged", "damaged_own_file", "ended_early", "read_failure", "reading", "unreadable"]
__all__ += ["CachedSource", "MemorySource", "Scratch", "Source", "SourceStream", "message_without_advice"]

FORMATS = "datagen.formats"  # the package of formats; each module in it is a format
CHUNK_BYTES = 1 << 20  # payload generated and written at a time: it stays in a core's L2 cache
MAX_KEPT_FILES = 16  # open files, or indexes of files, that an engine keeps; each thread of a loader has its own engine
HEADERS_AT_ONCE_BYTES = 32 << 10  # read size of scans for record headers: an object store sends it as fast as a header

Sizes = NDArray[np.int64]  # a number for each file, such as its bytes; or the record shapes of files, (files, axes)
Offsets = NDArray[np.int64]  # offset of each record, and the end of the last one
Extents = Sequence[tuple[int, int]] | NDArray[np.int64]  # (start, bytes) of each sample; an array is (samples, 2)
Version = tuple[str, int, int]  # one state of a file: its path, bytes, and modification time in ns
_offsets_of_files: dict[Version, Offsets] = {}  # cache for the life of the process: it takes 8 bytes per record


class Sample(NamedTuple):
    data: memoryview  # the bytes as read
    payload: memoryview  # the part of the file's payload that was read; empty if only `decode` can produce it
    payload_offset: int  # where that part begins in the file's payload
    decode: Callable[[], memoryview] | None = None  # decodes `data` to pixels, numbers or bytes; None: not encoded
    # Computes the expected `payload` from the content and the file's running index; None: it is the content itself
    rebuild: Callable[[Content, int], memoryview] | None = None

    def first_difference(self, content: Content, file: int) -> int | None:
        """Return the index of the first byte of `plain_payload` that was not generated for `file`; None if all were."""
        payload = self.plain_payload
        if self.rebuild is None:
            return content.first_difference(payload, file, self.payload_offset)
        expected = np.frombuffer(self.rebuild(content, file), np.uint8)
        common_bytes = min(expected.size, len(payload))
        differs = np.frombuffer(payload, np.uint8)[:common_bytes] != expected[:common_bytes]
        if differs.any():
            return int(differs.argmax())
        return None if expected.size == len(payload) else common_bytes

    @property
    def plain_payload(self) -> memoryview:
        """The payload, decoded if needed."""
        return self.payload if self.decode is None or len(self.payload) else self.decode()


class OpenFile(abc.ABC):
    """An open file whose structure has been read."""

    stays_open = False  # whether a file of several samples stays open between batches: its structure is read once

    @abc.abstractmethod
    def sample(self, index: int) -> Sample:
        """Return sample `index` of the file."""

    def forget(self) -> None:
        """Release the samples read so far, because their memory will be reused; keep the structure of the file."""
        return


class OneSample(OpenFile):
    """A file of one sample, which is in memory."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def sample(self, index: int) -> Sample:
        return self._sample


@dataclass(frozen=True)
class FileJob:
    spec: DatasetSpec
    content: Content
    running_index: int
    shape: tuple[int, ...]  # shape of each record in the file

    @property
    def record_bytes(self) -> int:
        return math.prod(self.shape) * self.spec.element_bytes

    @property
    def payload_bytes(self) -> int:
        return self.record_bytes * self.spec.num_samples_per_file

    def payload(self, buffer: AlignedBuffer, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield bytes `start` to `stop` (exclusive) of the payload, by default all; a chunk is valid until the next."""
        if stop is None:
            stop = self.payload_bytes
        chunk = buffer.view(CHUNK_BYTES)
        for chunk_start in range(start - start % BLOCK_BYTES, stop, CHUNK_BYTES):  # generating whole blocks is fastest
            chunk_bytes = min(CHUNK_BYTES, stop - chunk_start)
            self.content.fill(chunk[:chunk_bytes], self.running_index, chunk_start)
            yield chunk[max(start - chunk_start, 0) : chunk_bytes]


class SideFile(abc.ABC):
    """One kind of side file. It holds no state."""

    @abc.abstractmethod
    def path(self, layout: Layout, file: int) -> str:
        """Return the path of the side file of data file `file`."""

    @abc.abstractmethod
    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        """Return the exact size of the side file of each data file; `shapes` are record shapes (files, axes)."""

    @abc.abstractmethod
    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        """Write the side file sequentially, as a pure function of `job`: the data file is not read."""


class FormatBase(abc.ABC):
    """A file format. Subclasses implement the abstract methods, and `open` or `parse`: by default each calls the other.

    A method that reads may raise any exception: `read_failure` turns it into an error that names the file.
    """

    compressions: ClassVar[tuple[Compression, ...]] = ("none",)  # supported values of `dataset.compression`
    one_sample: ClassVar[bool] = False  # a file is one sample
    only_bytes: ClassVar[bool] = False  # elements are of type uint8
    sides: ClassVar[tuple[SideFile, ...]] = ()  # side files; generated, counted, resumed and verified with data files
    own_files = False  # the files are a user's own: images may be of another type than their name says, or incomplete
    reads_parts: ClassVar[bool] = False  # `open` reads only the structure, and each `sample` only its own bytes
    compares_files: ClassVar[bool] = False  # reader.verify compares whole files, even bytes that the library skips
    # Maximum bytes of a read call of the usual library, and so of dlemu's own reader; 0: no maximum. docs/loaders.md,
    # "Size of requests", says how the values were measured
    transfer_bytes: ClassVar[int] = 0

    def unfit(self, spec: DatasetSpec) -> list[str]:
        """Return a message for each setting that this format does not support: key, value and what is expected."""
        problems = []
        if spec.compression not in self.compressions:
            wanted = f"format {spec.format} supports only {' or '.join(self.compressions)}"
            problems.append(f"dataset.compression is {spec.compression}: {wanted}")
        if self.one_sample and spec.num_samples_per_file != 1:
            wanted = f"a {spec.format} file is one sample, set it to 1"
            problems.append(f"dataset.num_samples_per_file is {spec.num_samples_per_file}: {wanted}")
        if self.only_bytes and spec.record_element_type != "uint8":
            wanted = f"format {spec.format} supports only uint8"
            problems.append(f"dataset.record_element_type is {spec.record_element_type}: {wanted}")
        return problems

    @abc.abstractmethod
    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes | None:
        """Return the exact size of each file, given record shapes (files, axes); None if it depends on the contents."""

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        """Write one file sequentially, by default only the payload, which is generated in the memory `buffer`.

        If `file_bytes` returns the file's size, its bytes must be a pure function of `job`.
        """
        for chunk in job.payload(buffer):
            writer.write(chunk)

    def open(self, source: Source, samples: int, *, matched: bool = False) -> OpenFile:
        """Open a file of `samples` samples for reading in as few calls as possible, by default one for the whole file.

        With `matched`, a format that `reads_parts` makes the read calls of its library instead.
        """
        return self.parse(source.read(0, source.size_bytes), samples, source.scratch)

    # A method (file, samples) that makes the library's read calls on a `_source.BufferedFile`, with the same offsets,
    # lengths and order; `parse` then gets zeros for the bytes not read. None: the library reads a file by one call
    read_matched: Callable[[Any, int], None] | None = None

    def parse(self, data: memoryview, samples: int, scratch: Scratch) -> OpenFile:
        """Open a file whose bytes are all in memory; by default, this calls `open`."""
        if type(self).open is FormatBase.open:
            raise UserError(f"{type(self).__module__} can't read files: its `Format` has neither `open` nor `parse`")
        return self.open(MemorySource(data, scratch), samples)

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read a sample of a file by the library call of a training script; by default, read the file whole."""
        with open(path, "rb") as file:
            data = memoryview(file.read())
        return self.parse(data, samples, lambda size: memoryview(bytearray(size))).sample(index)


class UnreadFormat(FormatBase):
    """A format whose files are never read: samples are made in memory."""

    @abc.abstractmethod
    def unread_bytes(self, files: int) -> Sizes:
        """Return the size of each file, by running index."""


class StreamCalls(NamedTuple):
    """The read calls by which a library streams a file of records, whatever the record boundaries are."""

    # Takes the file system's block size; yields the bytes that successive read calls request, endlessly
    sizes: Callable[[int], Iterator[int]]
    # Shorter reads that are not sequential make the calls of Python's buffered files, as scripts with an index do
    min_stream_bytes: int = 0
    retries_short_reads: bool = False  # after a call that the end of the file cuts short, request the missing bytes


class RecordInputs(NamedTuple):
    """The inputs of a `RecordFile`: a data file and its side files, which stay open until the reader closes them."""

    source: Source
    samples: int
    # Opens the side file with this index in the format's `sides`; returns None if it does not exist. Raises OSError
    open_side: Callable[[int], Source | None]
    offsets: Offsets | None = None  # None: all records have one length
    matched: bool = False  # a format that `looks_up` records then does so by the read calls of its library


class RecordFormat(FormatBase):
    """A format with many records in each file. Files stay open, and each record is read directly into its batch."""

    mapped: ClassVar[bool] = False  # files in folders are read through memory maps
    # The library looks up each record in an index, and opens the file for each record unless it maps files
    looks_up: ClassVar[bool] = False
    stream_calls: ClassVar[StreamCalls | None] = None  # the read calls of a library that streams files
    tail_bytes: ClassVar[int] = 0  # bytes of a file after its last record

    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        return self.record_bytes(spec, shapes) * spec.num_samples_per_file + self.tail_bytes

    def record_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        """Return the bytes of one record of each file, with its framing; by default there is none."""
        return sample_bytes(spec, shapes)

    @abc.abstractmethod
    def open_records(self, inputs: RecordInputs) -> RecordFile:
        """Open a file for reading records."""

    def locate(self, inputs: RecordInputs) -> Offsets | None:
        """Return the offsets of a file's records, by default from their headers; None if the format `looks_up` each."""
        if self.looks_up:
            return None
        file = io.BufferedReader(SourceStream(inputs.source), HEADERS_AT_ONCE_BYTES)
        offsets = self.cached_offsets(file, version_of(inputs.source.path, inputs.source.size_bytes))
        records = len(offsets) - 1
        if records < inputs.samples:
            raise no_such_record(records, records)
        return offsets[: inputs.samples + 1]

    def cached_offsets(self, file: BinaryIO, version: Version) -> Offsets:
        """Return the offsets of all records of a file; its headers are read once per `version`, before measurements."""
        if version not in _offsets_of_files:
            _offsets_of_files[version] = np.array(self.offsets(file), np.int64)
        return _offsets_of_files[version]

    def offsets(self, file: BinaryIO) -> list[int]:
        """Read the header of each record; return their offsets and the end of the last one."""
        raise NotImplementedError  # a format whose records have no headers overrides `locate`


class RecordFile:
    """An open file of records, all of one length unless offsets are given. Its memory does not grow with reads."""

    scattered = False  # whether consecutive records may lie apart in the file; they are then read one by one

    def __init__(self, inputs: RecordInputs, record_bytes: int) -> None:
        self.source = inputs.source
        self._samples = inputs.samples
        self._offsets = inputs.offsets
        self._record_bytes = record_bytes  # of each record, if there are no offsets

    def span(self, index: int, count: int) -> tuple[int, int]:
        """Return (offset in the file, bytes) of `count` consecutive records from record `index` on."""
        if not 0 <= index <= index + count <= self._samples:
            raise no_such_record(index, self._samples)
        if self._offsets is None:
            return index * self._record_bytes, count * self._record_bytes
        start, stop = int(self._offsets[index]), int(self._offsets[index + count])
        return start, stop - start

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> Extents:
        """Return (start in `data`, bytes) of each sample; `data` was read from `span(index, count)`.

        With `verify`, also compare the checksums in the file. By default, call `extent` for each record.
        """
        extents, record_start = [], 0
        for number in range(index, index + count):
            offset, record_bytes = self.span(number, 1)
            record = data[record_start : record_start + record_bytes]
            sample_start, size_bytes = self.extent(record, offset, verify)
            extents.append((record_start + sample_start, size_bytes))
            record_start += record_bytes
        return extents

    def extent(self, record: memoryview, offset: int, verify: bool) -> tuple[int, int]:
        """Return (start, bytes) of the sample in a record at `offset` of the file; override this, or `samples`."""
        raise NotImplementedError  # a default could take framing for data

    def largest_bytes(self) -> int:
        """Return the size of the largest record, from the file or its index."""
        return self._record_bytes if self._offsets is None else int(np.diff(self._offsets).max())


def version_of(path: str, size_bytes: int) -> Version:
    """Return the state of a file. For an object, the time is 0; if another of its size replaces it, reading fails."""
    try:
        status = os.stat(path)
    except OSError:
        return path, size_bytes, 0
    return path, status.st_size, status.st_mtime_ns


def no_such_record(index: int, samples: int) -> DamagedError:
    """Return the error for a file that holds fewer records (`samples`) than the settings say."""
    problem = f"no record {index}: it holds {samples}; if all files do, set dataset.num_samples_per_file to that"
    return DamagedError(problem, None)


class PackedSample(NamedTuple):
    """One sample to be packed into a file by `dlemu pack`."""

    name: str  # path of the sample's source file below the source folder
    data: memoryview  # the sample's bytes
    ending: str  # extension that a file of these bytes would have: jpg, png, bin


class Packer(Protocol):
    """Packs existing samples into one file, sequentially; `dlemu pack` supports formats whose module has a `Packer`."""

    ending: ClassVar[str]  # extension of the files

    def __init__(self, writer: Writer) -> None: ...

    def add(self, sample: PackedSample) -> None:
        """Write a sample, or keep it until `finish`. Raises ValueError for a sample that does not fit."""

    def finish(self) -> bytes:
        """Write the rest of the file; return the bytes of the format's first side file, empty if it has none."""


def format_named(name: str) -> FormatBase:
    """Return the format of this name. Raises UserError."""
    file_format = registry.find(FORMATS, name, "Format")()
    if not isinstance(file_format, FormatBase):
        raise UserError(f"dataset.format={name}: its `Format` is not derived from {FormatBase.__module__}.FormatBase")
    return file_format


def sample_bytes(spec: DatasetSpec, shapes: Sizes) -> Sizes:
    """Return for each file the bytes of one sample; `shapes` are record shapes (files, axes)."""
    return cast("NDArray[np.int64]", shapes.prod(axis=1) * spec.element_bytes)


def map_distinct(sizes: Sizes, compute: Callable[[int], int]) -> Sizes:
    """Return `compute(size)` for each of `sizes`, calling it only once for equal sizes."""
    distinct, indices = np.unique(sizes, return_inverse=True)
    return np.fromiter(map(compute, distinct.tolist()), np.int64, len(distinct))[indices]
