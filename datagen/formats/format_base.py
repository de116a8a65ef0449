"""What every format does: sizes by arithmetic, writing from a `Content`, reading from a `Source`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import DatasetError
from datagen.layout import Layout
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

FORMATS = "datagen.formats"
"""The folder of formats; a name in it is a format's."""


class Sample(NamedTuple):
    """One sample in memory."""

    data: memoryview
    """Its bytes as they were read."""
    payload: memoryview
    """The stretch of the file's payload that was read for it, in the order in which `Content` numbers it.

    Empty where `decode` gives it.
    """
    payload_offset: int
    """Where that stretch begins in the file's payload."""
    decode: Callable[[], memoryview] | None = None
    """Unpacks `data` (pixels, numbers, plain bytes); None where that is plain already. Raises DatasetError."""
    rebuild: Callable[[Content, int], memoryview] | None = None
    """Makes what `payload` must be, of the dataset's content and the file's running index.

    None where it is the content itself. Raises DatasetError.
    """

    def first_difference(self, content: Content, file: int) -> int | None:
        """Return the index in `plain_payload` of the first byte that was not generated for `file`; None if all were.

        Raises:
            DatasetError: it can't be unpacked.
        """
        actual = self.plain_payload
        if self.rebuild is None:
            return content.first_difference(actual, file, self.payload_offset)
        wanted = np.frombuffer(self.rebuild(content, file), np.uint8)
        size = min(wanted.size, len(actual))
        differs = np.frombuffer(actual, np.uint8)[:size] != wanted[:size]
        if differs.any():
            return int(differs.argmax())
        return None if wanted.size == len(actual) else size

    @property
    def plain_payload(self) -> memoryview:
        """Return the payload, unpacked where that is needed. Raises DatasetError."""
        return self.payload if self.decode is None or len(self.payload) else self.decode()


class Source(Protocol):
    """One file to read from, and memory for what it holds."""

    path: str
    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Return bytes of the file, exactly as many as asked; they stay until the file is closed.

        Raises:
            DatasetError: the file ends before, or can't be read.
        """
        ...

    def scratch(self, size_bytes: int) -> memoryview:
        """Return memory for decoded bytes, other at each call; it stays until the file is closed."""
        ...


class CallSource(Source, Protocol):
    """One whose every read call is the format's to choose."""

    block_bytes: int
    """What the file system states as the best size of reads (st_blksize)."""
    again_bytes: int
    """Bytes that calls brought which others had brought before."""

    def memory(self, size_bytes: int) -> memoryview:
        """Return memory for bytes of the file, other at each call; it stays until the file is closed."""
        ...

    def call(self, target: memoryview, offset: int) -> int:
        """Make one read call; return the bytes got, fewer than asked for at the end of the file. Raises OSError."""
        ...


class OpenFile(Protocol):
    """One file whose structure is known."""

    def sample(self, index: int) -> Sample:
        """Return one of its samples.

        Raises:
            DatasetError: there is no such sample, or it is damaged.
        """
        ...


MOST_KEPT_FILES = 16
"""Files that an engine keeps open, or their indexes; loaders of threads have an engine a thread in one process."""


@runtime_checkable
class KeptFile(OpenFile, Protocol):
    """One that is worth keeping open when batches have more of its samples to come: its structure costs reads."""

    def forget(self) -> None:
        """Forget the samples read so far: their memory will hold others. What is known of the structure stays."""
        ...


@dataclass(frozen=True)
class FileJob:
    """One file to write."""

    spec: DatasetSpec
    content: Content
    running_index: int
    shape: tuple[int, ...]
    """Shape of each record in the file."""

    @property
    def record_bytes(self) -> int:
        """Return the bytes of a record of this shape."""
        return math.prod(self.shape) * self.spec.element_bytes

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of all records of the file."""
        return self.record_bytes * self.spec.num_samples_per_file


class Format(Protocol):
    """A file format. It holds no state."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        """Return the problems of a spec that this format can't do: key, what was seen, what is wanted."""
        ...

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the exact size of files with records of these shapes (files, axes); None when content decides it."""
        ...

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        """Write one file, front to back, its bytes a pure function of the job where `file_bytes` knows their count."""
        ...

    def open(self, source: Source, samples: int) -> OpenFile:
        """Read a file fast, as far as its samples need it.

        Raises:
            DatasetError: the file is truncated or not of this format.
        """
        ...

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read one of a file's `samples` by the library call that a user's script would make.

        Raises:
            DatasetError: the file is damaged or not of this format.
        """
        ...


@runtime_checkable
class WholeFormat(Format, Protocol):
    """A format whose files of one sample are read by one call: small ones cost as much CPU to manage as to read."""

    def take_apart(self, path: str, data: memoryview) -> Sample:
        """Return the sample of a file of one sample, all of which is `data`.

        Raises:
            DatasetError: the file is damaged or not of this format.
        """
        ...


@runtime_checkable
class CalledFormat(Format, Protocol):
    """A format whose files can be read by its library's own read calls, without the library."""

    def open_called(self, source: CallSource, samples: int) -> OpenFile:
        """Do as `open`, by the calls that the library makes (`LIBRARY`): the same offsets and lengths, in their order.

        Raises:
            DatasetError: the file is truncated or not of this format.
        """
        ...


@runtime_checkable
class StreamFormat(Format, Protocol):
    """A format whose library also takes an open file: `reader.engine=library` works where a storage has no paths."""

    def load_stream(self, file: LibraryFile, index: int, samples: int) -> Sample:
        """Do as `load` does, from an open file; its `name` is its path.

        Raises:
            DatasetError: the file is damaged or not of this format.
        """
        ...


@runtime_checkable
class IndexedStreamFormat(Format, Protocol):
    """The same for a format with index files beside each data file, which scripts read whole and keep."""

    index_suffixes: tuple[str, ...]
    """What follows a data file's path in those of its index files."""

    def load_indexed(self, file: LibraryFile, indexes: Sequence[memoryview], index: int, samples: int) -> Sample:
        """Do as `load` does, from an open file and the bytes of its index files.

        Raises:
            DatasetError: a file is damaged or not of this format.
        """
        ...


class SideFile(Protocol):
    """A file that goes with each data file, such as its index. It holds no state."""

    def path(self, layout: Layout, file: int) -> str:
        """Return the path of the side file of data file `file`."""
        ...

    def folder(self, layout: Layout) -> str | None:
        """Return the folder of its own that it needs, None when it lies beside the data file."""
        ...

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the exact size of the side files of data files with these shapes (files, 2)."""
        ...

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        """Write it, front to back, its bytes a pure function of the job: it is made without reading the data file."""
        ...


OpenSide = Callable[[int], Source | None]
"""Opens the side file of that number among a format's `sides`; None where there is none. Raises OSError."""


Extents = Sequence[tuple[int, int]] | NDArray[np.int64]
"""(start, bytes) of some samples: one by one, or as an array of shape (samples, 2)."""


class RecordFile(Protocol):
    """One file of records, open for as long as its reader likes; what it knows of the file does not grow by reading."""

    @property
    def scattered(self) -> bool:
        """Say that neighbours may lie apart: then they are asked for one by one."""
        ...

    def span(self, index: int, count: int) -> tuple[int, int]:
        """Return offset and bytes in the file of `count` neighbouring records.

        Raises:
            DatasetError: there are no such records.
        """
        ...

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> Extents:
        """Return (start, bytes) of each sample in `data`, the bytes of `span(index, count)`; sums are checked if asked.

        Raises:
            MovedError: the records lie elsewhere than `span` supposed; it knows better now.
            DatasetError: the records are damaged.
        """
        ...

    def largest_bytes(self) -> int:
        """Return the bytes of the largest record, looked up in the file or its index.

        Raises:
            DatasetError: the file is damaged.
        """
        ...


class MovedError(Exception):
    """Records lie elsewhere than supposed: ask for their span again."""


@runtime_checkable
class RecordFormat(Format, Protocol):
    """A format of many records a file, each read by itself, in place, from files that stay open between batches."""

    sides: tuple[SideFile, ...]
    """Side files that are made, counted, resumed and verified along with each data file."""
    mapped: bool
    """Ordinary files are read through memory maps."""

    def record_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes that each record takes in files of these shapes (files, 2)."""
        ...

    def open_records(self, source: Source, samples: int, side: OpenSide) -> RecordFile:
        """Make a file ready for reading records. `source` and sides serve until the reader closes the file.

        Raises:
            DatasetError: the file can't be of this format.
        """
        ...


@runtime_checkable
class CalledRecordFormat(RecordFormat, Protocol):
    """One whose library looks records up in another way: `open_called_records` in place of `open_records`."""

    def open_called_records(self, source: Source, samples: int, side: OpenSide) -> RecordFile:
        """Do as `open_records`, as the library does; where files are not `mapped`, it opens them for each record."""
        ...


class StreamCalls(NamedTuple):
    """How a library reads a file of records from some place on."""

    sizes: Callable[[int], Iterator[int]]
    """Bytes that its read calls ask for, one after the other without end; of a file system's block size."""
    least_bytes: int = 0
    """Less than this, anywhere but behind what was read, is read as scripts with an index do: by Python's own files."""
    asks_again: bool = False
    """A call that the end of the file cut short is followed by one for the rest."""
    tail_bytes: int = 0
    """What a file has behind its last record."""


@runtime_checkable
class StreamedRecordFormat(RecordFormat, Protocol):
    """One whose library reads files from their beginning to their end, in pieces that know nothing of records."""

    stream_calls: StreamCalls


class PackedSample(NamedTuple):
    """One sample on its way into a packed file."""

    name: str
    """Where it comes from: the path of its file below the folder of all."""
    data: memoryview
    """Its bytes."""
    ending: str
    """What a file of these bytes would be called: jpg, png, bin."""
    array: NDArray[Any] | None = None
    """The same as numbers, where they are not encoded."""


class Packer(Protocol):
    """Puts samples that were made elsewhere into one file of a format, front to back.

    A format's module may have a class `Packer`; `dlemu pack` writes these formats.
    """

    wants_arrays: ClassVar[bool]
    """Samples must be arrays, all of one shape."""
    ending: ClassVar[str]
    """What the files' names end in."""

    def __init__(self, writer: Writer) -> None: ...

    def add(self, sample: PackedSample) -> None:
        """Write a sample, or keep it until the file is finished. Raises ValueError for one that does not fit."""
        ...

    def finish(self) -> bytes:
        """Write what is left, and return the bytes of the format's first side file, empty where it has none."""
        ...


@runtime_checkable
class UnreadFormat(Format, Protocol):
    """A format whose files are never read: samples are made in memory."""

    def unread_bytes(self, files: int) -> NDArray[np.int64]:
        """Return the size of each file, by running index."""
        ...


@dataclass(frozen=True, kw_only=True)
class LibraryReads:
    """How the library reads a format by which most training scripts do; a format's module may say it as `LIBRARY`.

    Values and how they were found: docs/loaders.md, "Size of requests", and docs/benchmarks.md, "library".
    """

    call: str = ""
    """What such a script calls; empty where nothing is known."""
    in_parts: bool = False
    """Of a file of several samples it reads what one of them needs, not all."""
    transfer_bytes: int = 0
    """Bytes that its read calls ask for at most, and so those of dlemu's own reader; 0: as much as is wanted."""
    cpu_ratio: float | None = None
    """CPU time of a byte read by it, times that of dlemu's own reader, out of the page cache and not decoded."""


def library_reads(format_name: str) -> LibraryReads:
    """Return how the library reads a format; nothing is known of one whose module does not say it. Raises UserError."""
    reads: LibraryReads = registry.companion(FORMATS, format_name, "LIBRARY", LibraryReads())
    return reads


def built_in_reads(format_name: str) -> LibraryReads:
    """Return the same of a format that is named by what was received: nothing is known of any but those built in."""
    reads: LibraryReads = registry.built_in(FORMATS, format_name, "LIBRARY", LibraryReads())
    return reads


def sides_of(file_format: Format) -> tuple[SideFile, ...]:
    """Return the side files of a format; only record formats have any."""
    return file_format.sides if isinstance(file_format, RecordFormat) else ()


def damaged(path: str, problem: str, offset: int) -> DatasetError:
    """Say that a file is not what it should be, and what to do."""
    return DatasetError(
        f"{path}: {problem} at offset {offset}. Run `dlemu datagen verify` to find every damaged file; "
        "delete those and run `dlemu datagen` with the same settings to make them again"
    )


def sample_bytes(spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the samples in files with records of these shapes (files, axes)."""
    return cast("NDArray[np.int64]", shapes.prod(axis=1) * spec.element_bytes)


def no_side(_number: int) -> Source | None:
    """Stand in where side files are out of reach."""
    return None


class RecordSamples:
    """A file of records as an `OpenFile`: reads each record when it is asked for."""

    def __init__(self, source: Source, records: RecordFile) -> None:
        self._source = source
        self._records = records

    def sample(self, index: int) -> Sample:
        """Return a sample; its payload is the sample itself."""
        try:
            return self._read(index)
        except MovedError:
            return self._read(index)

    def _read(self, index: int) -> Sample:
        data = self._source.read(*self._records.span(index, 1))
        ((start, size),) = self._records.samples(index, 1, data, False)
        payload = data[start : start + size]
        return Sample(payload, payload, index * size)


class OffsetRecords:
    """A file of records that are taken to have one length, until `_offsets` tells where each of them lies."""

    scattered = False

    def __init__(self, source: Source, samples: int, record_bytes: int) -> None:
        self._source = source
        self._samples = samples
        self._record_bytes = record_bytes
        self._offsets: NDArray[np.int64] | None = None
        """Where each record begins, and the last one ends."""

    def span(self, index: int, count: int) -> tuple[int, int]:
        if not 0 <= index <= index + count <= self._samples:
            raise no_such_record(self._source.path, index, self._samples)
        if self._offsets is None:
            return index * self._record_bytes, count * self._record_bytes
        start = int(self._offsets[index])
        return start, int(self._offsets[index + count]) - start

    def largest_bytes(self) -> int:
        return self._record_bytes if self._offsets is None else int(np.diff(self._offsets).max())


def no_such_record(path: str, index: int, samples: int) -> DatasetError:
    """Say that a file has fewer records than the settings state."""
    return DatasetError(
        f"{path} has no record {index}: it holds {samples}. "
        "Set dataset.num_samples_per_file to what its files hold, or make the dataset again with `dlemu datagen`"
    )
