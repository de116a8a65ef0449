"""The interface of a file format: compute file sizes, write files from a `Content`, read samples from a `Source`.

A format is one module with a class `Format`, a subclass of `FormatBase`, or of `RecordFormat` or `GroupFormat`
(`datagen.groups`). Payload: the bytes of all samples of a file in order, without framing, encoding or compression;
`Content` generates it. Side file: a file that accompanies each data file, such as an index. Matched: read by
exactly the read calls that the usual Python library of the format makes, without that library
(`reader.engine=matched`).
"""

from __future__ import annotations

import abc
import contextlib
import errno
import io
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.buffers import AlignedBuffer, FileMemory, NewMemory
from datagen.content import Content
from datagen.errors import DatasetError, DlemuError, SpaceError, UserError
from datagen.layout import Layout
from datagen.spec import BLOCK_BYTES, Compression, DatasetSpec
from datagen.storage.storage_base import Reader, StorageBase, Writer, read_in_transfers

Sizes = NDArray[np.int64]
Offsets = NDArray[np.int64]  # offset of each record, and the end of the last one
FORMATS = "datagen.formats"  # the package of formats; each module in it is a format


Scratch = Callable[[int], memoryview]
"""Returns memory of so many bytes."""


class Sample(NamedTuple):
    """One sample in memory."""

    data: memoryview  # the bytes as they were read
    payload: memoryview
    """The part of the file's payload that was read for this sample; empty if only `decode` can produce it."""
    payload_offset: int  # offset of that part in the file's payload
    decode: Callable[[], memoryview] | None = None
    """Decodes `data` (to pixels, numbers or plain bytes); None if `data` is not encoded."""
    rebuild: Callable[[Content, int], memoryview] | None = None
    """Returns the expected `payload`, given the dataset's content and the file's running index.

    None if the payload is the content itself.
    """

    def first_difference(self, content: Content, file: int) -> int | None:
        """Return the index in `plain_payload` of the first byte that was not generated for `file`; None if all were."""
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
        """Return the payload, decoded if needed."""
        return self.payload if self.decode is None or len(self.payload) else self.decode()


class Source:
    """An open file, and memory for the bytes read from it.

    `path` is its path, `size_bytes` its size, `block_bytes` the read size that the file system prefers (st_blksize),
    and `mapped` its bytes if it is read through a memory map.
    """

    read_ns = 0  # time in reads
    reread_bytes = 0  # bytes that were read more than once, counted each further time, by formats that use `call`
    _counted = (0, 0, 0)

    def __init__(
        self,
        path: str,
        reader: Reader,
        alignment: int = 1,
        transfer_bytes: int = 0,
        memory: NewMemory | FileMemory | None = None,
    ) -> None:
        """Read in calls of at most `transfer_bytes` (0: any size), at multiples of `alignment`, into `memory`.

        Decoded bytes go into memory of `scratch`. Without `memory`, it is new for each read.
        """
        memory = memory or NewMemory(alignment)
        self.memory = memory.take
        self.scratch: Scratch = memory.scratch
        self.path = path
        self.size_bytes = reader.size_bytes
        self.reader = reader
        self._alignment = alignment
        self._transfer_bytes = transfer_bytes

    @property
    def block_bytes(self) -> int:
        return block_bytes_of(self.reader)

    @property
    def mapped(self) -> memoryview | None:
        return getattr(self.reader, "mapped", None)

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Return exactly the bytes requested; they stay valid until the file is closed, or its memory is reused.

        Raises DatasetError: the file ends too early, or can't be read. SpaceError: too many files are open.
        """
        before = offset % self._alignment
        wanted = before + size_bytes
        target = self.memory(-(-wanted // self._alignment) * self._alignment)
        begun = time.monotonic_ns()
        try:
            got = read_in_transfers(self.reader, target, offset - before, self._transfer_bytes)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.read_ns += time.monotonic_ns() - begun
        if got < wanted:
            raise ended_early(self.path, wanted - got, offset - before + got)
        return target[before:wanted]

    def call(self, target: memoryview, offset: int) -> int:
        """Make one read call; return the bytes got, fewer than requested at the end of the file. Raises OSError."""
        begun = time.monotonic_ns()
        got = self.reader.read_into(target, offset)
        self.read_ns += time.monotonic_ns() - begun
        return got

    def counts(self) -> tuple[int, int, int]:
        """Return bytes (each counted once), calls and nanoseconds of the reads since the last time."""
        before = self._counted
        after = self._counted = self.reader.app_bytes - self.reread_bytes, self.reader.read_calls, self.read_ns
        return after[0] - before[0], after[1] - before[1], after[2] - before[2]

    def close(self) -> None:
        self.reader.close()


class CachedSource(Source):
    """A `Source` with parts of the file in memory, given as (offset, bytes): only other parts are read."""

    def __init__(self, source: Source, parts: Sequence[tuple[int, memoryview]]) -> None:
        self.path, self.size_bytes, self.reader = source.path, source.size_bytes, source.reader
        self._source = source
        self._parts = parts

    def read(self, offset: int, size_bytes: int) -> memoryview:
        for begin, data in self._parts:
            if begin <= offset and offset + size_bytes <= begin + len(data):
                return data[offset - begin : offset - begin + size_bytes]
        return self._source.read(offset, size_bytes)


class MemorySource(Source):
    """A file that is in memory as a whole."""

    def __init__(self, data: memoryview, scratch: Scratch) -> None:
        self.path, self.size_bytes, self.scratch, self._data = "", len(data), scratch, data

    def read(self, offset: int, size_bytes: int) -> memoryview:
        if offset + size_bytes > self.size_bytes:
            raise DamagedError(f"the file ends before offset {offset + size_bytes}", self.size_bytes)
        return self._data[offset : offset + size_bytes]


class StoredFile(io.RawIOBase):
    """A `Source` as a Python file object, for libraries that take one (np.load, h5py, pyarrow); it stays open."""

    def __init__(self, source: Source) -> None:
        self.name, self.source = source.path, source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.source.size_bytes}[whence]
        if at < 0:
            raise ValueError(f"seek to {at}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        return bytes(self._next(self.source.size_bytes if size < 0 else size))

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any writable buffer
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def _next(self, most_bytes: int) -> memoryview:
        """Read by one call, up to the end of the file."""
        data = self.source.read(self._at, max(0, min(most_bytes, self.source.size_bytes - self._at)))
        self._at += len(data)
        return data


def block_bytes_of(reader: Reader) -> int:
    """Return the preferred read size that the file system reports (st_blksize); 4096 where it reports none."""
    return int(getattr(reader, "block_bytes", 4096))


class OpenFile(abc.ABC):
    """An open file whose structure has been read."""

    stays_open = False
    """A file of several samples stays open between batches: reading its structure again would cost read calls."""

    @abc.abstractmethod
    def sample(self, index: int) -> Sample:
        """Return a sample."""

    def forget(self) -> None:
        """Release the samples read so far, whose memory is going to be reused; keep the structure of the file."""
        return


MAX_KEPT_FILES = 16
"""Files, or indexes of files, that an engine keeps open; a loader with threads has one engine for each thread."""


CHUNK_BYTES = 1 << 20  # payload generated and written at a time: it stays in a core's L2 cache


@dataclass(frozen=True)
class FileJob:
    """A file to be written."""

    spec: DatasetSpec
    content: Content
    running_index: int
    shape: tuple[int, ...]  # shape of each record in the file

    @property
    def record_bytes(self) -> int:
        """Return the bytes of one record."""
        return math.prod(self.shape) * self.spec.element_bytes

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of all records of the file."""
        return self.record_bytes * self.spec.num_samples_per_file

    def payload(self, buffer: AlignedBuffer, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Generate bytes `start` to `stop` of the payload, by default all; each piece is valid until the next one."""
        chunk, stop = buffer.view(CHUNK_BYTES), self.payload_bytes if stop is None else stop
        for block in range(start - start % BLOCK_BYTES, stop, CHUNK_BYTES):  # generating whole blocks is fastest
            end = min(block + CHUNK_BYTES, stop)
            self.content.fill(chunk[: end - block], self.running_index, block)
            yield chunk[max(start - block, 0) : end - block]


class SideFile(abc.ABC):
    """One kind of side file: a file that accompanies each data file, such as an index. It holds no state."""

    @abc.abstractmethod
    def path(self, layout: Layout, file: int) -> str:
        """Return the path of the side file of data file `file`."""

    def folder(self, layout: Layout) -> str | None:
        """Return the folder to be made for these side files; None if they are beside the data files."""
        return None

    @abc.abstractmethod
    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        """Return the exact size of the side file of each data file; `shapes` are record shapes (files, axes)."""

    @abc.abstractmethod
    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        """Write the side file sequentially, as a pure function of `job`: the data file is not read."""


class FormatBase(abc.ABC):
    """A file format. A format must implement the abstract methods only.

    What reads may raise any exception: `read_failure` makes of it the error that names the file.
    """

    compressions: ClassVar[tuple[Compression, ...]] = ("none",)
    """Values of `dataset.compression` that the format supports."""
    one_sample: ClassVar[bool] = False  # a file is one sample
    only_bytes: ClassVar[bool] = False  # elements are of type uint8
    sides: ClassVar[tuple[SideFile, ...]] = ()
    """Side files, which are generated, counted, resumed and verified along with each data file."""
    own_files = False  # the files are a user's own: pictures need not be what their names say, nor end cleanly
    reads_parts: ClassVar[bool] = False  # `open` reads only what its samples need
    transfer_bytes: ClassVar[int] = 0
    """Maximum bytes of the usual library's read calls, which dlemu's own reader then also uses; 0: no maximum.

    Values and how they were measured: docs/loaders.md, "Size of requests".
    """

    def unfit(self, spec: DatasetSpec) -> list[str]:
        """Return the settings that this format does not support: for each the key, its value and the value expected."""
        problems, only = [], f"format {spec.format} supports only"
        if spec.compression not in self.compressions:
            problems.append(f"dataset.compression is {spec.compression}: {only} {' or '.join(self.compressions)}")
        if self.one_sample and spec.num_samples_per_file != 1:
            seen = f"dataset.num_samples_per_file is {spec.num_samples_per_file}"
            problems.append(f"{seen}: a {spec.format} file is one sample, set it to 1")
        if self.only_bytes and spec.record_element_type != "uint8":
            problems.append(f"dataset.record_element_type is {spec.record_element_type}: {only} uint8")
        return problems

    @abc.abstractmethod
    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes | None:
        """Return the exact size of each file; None if it depends on the contents, as with compression.

        `shapes` are the record shapes of the files, an array (files, axes).
        """

    @abc.abstractmethod
    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        """Write one file sequentially. If `file_bytes` gives its size, its bytes are a pure function of `job`."""

    def open(self, source: Source, samples: int, *, matched: bool = False) -> OpenFile:
        """Open a file of `samples` samples, to read them by as few calls as possible: here one for the whole file.

        With `matched`, a format that `reads_parts` makes the read calls of its library instead.
        """
        return self.parse(source.read(0, source.size_bytes), samples, source.scratch)

    parse_matched: Callable[[Any, int, Scratch], OpenFile] | None = None
    """A method that does as `parse`, and reads the file (`_buffered.BufferedFile`) by the library's calls: the same
    offsets and lengths in the same order. None: the library reads a file by one call.
    """

    def parse(self, data: memoryview, samples: int, scratch: Scratch) -> OpenFile:
        """Do as `open`, given all bytes of the file. A format implements this or `open`, unless it is one of records
        or row groups.
        """
        return self.open(MemorySource(data, scratch), samples)

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read sample `index` of a file of `samples` samples by the library call that a training script would make.

        By default the file is read whole and parsed.
        """
        with open(path, "rb") as file:
            data = memoryview(file.read())
        return self.parse(data, samples, lambda size: memoryview(bytearray(size))).sample(index)


OpenSide = Callable[[int], Source | None]
"""Opens a side file, given its position in the format's `sides`; None if it does not exist. Raises OSError."""


Extents = Sequence[tuple[int, int]] | NDArray[np.int64]
"""(start, bytes) of each sample, as a sequence or as an array of shape (samples, 2)."""


class StreamCalls(NamedTuple):
    """The read calls by which a library streams a file of records, in pieces independent of record boundaries."""

    sizes: Callable[[int], Iterator[int]]
    """Takes the file system's block size; yields the bytes that successive read calls request, endlessly."""
    min_stream_bytes: int = 0
    """A non-sequential read of fewer bytes is made as scripts with an index do: through Python's buffered files."""
    retries_short_reads: bool = False
    """A call cut short by the end of the file is followed by one for the missing bytes, as TensorFlow does."""


class OpenedFile(NamedTuple):
    """A file of records. It and its side files stay open until the reader closes them."""

    source: Source
    samples: int
    side: OpenSide
    offsets: Offsets | None = None  # None: all records have one length
    matched: bool = False
    """A format that `looks_up` locates records by the library's read calls."""


class RecordFormat(FormatBase):
    """A format with many records in each file, read one by one into place from files that stay open."""

    mapped: ClassVar[bool] = False  # files in folders are read through memory maps
    looks_up: ClassVar[bool] = False
    """The library looks up each record in an index, and opens the file for each unless it maps files."""
    stream_calls: ClassVar[StreamCalls | None] = None  # the read calls of a library that streams files
    tail_bytes: ClassVar[int] = 0  # bytes of a file after its last record

    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        return self.record_bytes(spec, shapes) * spec.num_samples_per_file + self.tail_bytes

    @abc.abstractmethod
    def record_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        """Return for each file the bytes of one record, framing included; `shapes` are record shapes (files, axes)."""

    @abc.abstractmethod
    def open_records(self, opened: OpenedFile) -> RecordFile:
        """Open a file for reading records."""

    def locate(self, opened: OpenedFile) -> Offsets | None:
        """Return the offset of each record and the end of the last one; None for a format that looks them up."""
        file = io.BufferedReader(StoredFile(opened.source), HEADERS_AT_ONCE_BYTES)
        known = self.known_offsets(file, version_of(opened.source.path, opened.source.size_bytes))
        if len(known) <= opened.samples:
            raise no_such_record(len(known) - 1, len(known) - 1)
        return known[: opened.samples + 1]

    def known_offsets(self, file: BinaryIO, version: Version) -> Offsets:
        """Return the offset of each record of a file and its end; they are kept until the file changes."""
        if version not in _known:
            _known[version] = np.array(self.offsets(file), np.int64)
        return _known[version]

    def offsets(self, file: BinaryIO) -> list[int]:
        """Read the header of each record; return their offsets and the end. A format without headers has none."""
        raise NotImplementedError  # only formats of records are asked


class PackedSample(NamedTuple):
    """One sample to be packed into a file by `dlemu pack`."""

    name: str  # path of the sample's source file below the source folder
    data: memoryview  # the sample's bytes
    ending: str  # extension that a file of these bytes would have: jpg, png, bin


class Packer(Protocol):
    """Packs existing samples into one file of a format, sequentially.

    A format's module may define a class `Packer`; `dlemu pack` can then write the format.
    """

    ending: ClassVar[str]  # extension of the files

    def __init__(self, writer: Writer) -> None: ...

    def add(self, sample: PackedSample) -> None:
        """Write a sample, or keep it until `finish`. Raises ValueError for one that does not fit."""

    def finish(self) -> bytes:
        """Write the rest of the file; return the bytes of the format's first side file, empty if it has none."""


class UnreadFormat(FormatBase):
    """A format whose files are never read: samples are made in memory."""

    @abc.abstractmethod
    def unread_bytes(self, files: int) -> Sizes:
        """Return the size of each file, by running index."""


def format_named(name: str) -> FormatBase:
    """Return the format of this name. Raises UserError."""
    found = registry.find(FORMATS, name, "Format")()
    if not isinstance(found, FormatBase):
        raise UserError(f"dataset.format={name}: its `Format` is not derived from {FormatBase.__module__}.FormatBase")
    return found


def damaged(path: str, problem: str, offset: int | None = None) -> DatasetError:
    """Return the error for a damaged file, with what to do about it."""
    at = "" if offset is None else f" at offset {offset}"
    return DatasetError(
        f"{path}: {problem}{at}. Run `dlemu datagen verify` to find every damaged file; "
        "delete those and run `dlemu datagen` with the same settings to make them again"
    )


def ended_early(path: str, missing_bytes: int, at: int) -> DatasetError:
    """Return the error for a file that ended `missing_bytes` before the end of a read, at offset `at`."""
    return damaged(path, f"the file ended {missing_bytes} bytes early,", at)


def unreadable(path: str, error: OSError) -> DlemuError:
    """Return the error to raise for a failed read: what happened, and what to do."""
    reason = f"{path}: {error.strerror or error}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return SpaceError(f"{reason}: raise the limit (ulimit -n), or use fewer reader.read_threads")
    if isinstance(error, FileNotFoundError):
        return DatasetError(
            f"{reason}: it existed when the run started, on several hosts on that of rank 0: let all of them see the "
            "dataset, or make the file again with `dlemu datagen`"
        )
    if error.errno == errno.EINVAL:  # of some file systems that open files with O_DIRECT, and then don't read them
        return DatasetError(f"{reason}: the file system may refuse O_DIRECT: set reader.odirect=false")
    if isinstance(error, PermissionError):
        return DatasetError(f"{reason}: give the user of this run permission to read the dataset")
    return DatasetError(f"{reason}: the storage failed to read it; see the kernel's log (dmesg) for why")


class DamagedError(Exception):
    """A file is damaged at an offset; `read_failure` adds the path to the message."""

    def __init__(self, problem: str, offset: int | None = 0) -> None:
        super().__init__(problem)
        self.offset = offset


def read_failure(path: str, error: Exception) -> DlemuError:
    """Return the error for whatever a format or its library raised while it read a file: what is wrong, what to do.

    Libraries raise anything: SyntaxError, OverflowError, their own errors, and OSError without a number.
    """
    if isinstance(error, OSError) and error.errno:
        return unreadable(path, error)
    if isinstance(error, DamagedError):
        return damaged(path, str(error), error.offset)
    if isinstance(error, MemoryError):
        return DatasetError(f"{path}: no memory for what it says it holds ({error}): restore it, or free some memory")
    return damaged(path, f"damaged, or not of this format ({type(error).__name__}: {str(error)[:200]})", None)


@contextlib.contextmanager
def opened_file(file_format: FormatBase, path: str, storage: StorageBase, samples: int) -> Iterator[OpenFile]:
    """Open one file of `samples` samples, in memory of its own. What reading it raises becomes `read_failure`."""
    with reading(path), contextlib.closing(Source(path, storage.open(path), storage.alignment)) as source:
        yield file_format.open(source, samples)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise `read_failure` for what reading a file raises; dlemu's own errors name it already."""
    try:
        yield
    except DlemuError:
        raise
    except Exception as error:
        raise read_failure(path, error) from error


def own_damaged(error: DatasetError) -> DatasetError:
    """Return the error of `damaged` for a user's own file, which dlemu can't make again."""
    return DatasetError(f"{what_is_damaged(error)}; the file is yours: restore it, or move it away")


def what_is_damaged(error: Exception) -> str:
    """Return the text of an error without the advice of `damaged`, which is wrong for a user's own files."""
    return str(error).partition(". Run `dlemu datagen")[0]


def sample_bytes(spec: DatasetSpec, shapes: Sizes) -> Sizes:
    """Return for each file the bytes of one sample; `shapes` are record shapes (files, axes)."""
    return cast("NDArray[np.int64]", shapes.prod(axis=1) * spec.element_bytes)


class RecordFile(abc.ABC):
    """An open file of records, which all have one length unless their offsets are given.

    Its memory does not grow with the number of reads, so it may stay open.
    """

    scattered = False  # consecutive records may not be adjacent in the file; they are then read one by one

    def __init__(self, opened: OpenedFile, record_bytes: int) -> None:
        self._source, self._samples, self._offsets = opened.source, opened.samples, opened.offsets
        self._record_bytes = record_bytes

    def span(self, index: int, count: int) -> tuple[int, int]:
        """Return offset and bytes in the file of consecutive records."""
        if not 0 <= index <= index + count <= self._samples:
            raise no_such_record(index, self._samples)
        if self._offsets is None:
            return index * self._record_bytes, count * self._record_bytes
        start = int(self._offsets[index])
        return start, int(self._offsets[index + count]) - start

    @abc.abstractmethod
    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> Extents:
        """Return (start in `data`, bytes) of each sample; `data` was read from `span(index, count)`.

        With `verify`, checksums in the file are checked.
        """

    def largest_bytes(self) -> int:
        """Return the bytes of the largest record, from the file or its index."""
        return self._record_bytes if self._offsets is None else int(np.diff(self._offsets).max())


Version = tuple[str, int, int]  # a file as it is: path, bytes, and time of the last change in ns
HEADERS_AT_ONCE_BYTES = 32 << 10
"""What a request to an object store brings: headers of several small records, in about the time that one takes."""

_known: dict[Version, Offsets] = {}
"""A reader that looks for headers makes requests that no training job makes: they are read once for all uses."""


def version_of(path: str, size_bytes: int) -> Version:
    """Return the key of what is known of a file of this host, or of an object, until it changes.

    Reading an object finds out if another one as large has replaced it.
    """
    try:
        status = os.stat(path)
    except OSError:
        return path, size_bytes, 0
    return path, status.st_size, status.st_mtime_ns


def no_such_record(index: int, samples: int) -> DamagedError:
    """Return the error for a file that has fewer records than the settings say."""
    what = f"no record {index}: it holds {samples}; if all files do, set dataset.num_samples_per_file to that"
    return DamagedError(what, None)
