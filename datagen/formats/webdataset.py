"""WebDataset: tar files of samples, each a file in it whose name up to the first dot is its key.

Members with one key and behind each other are one sample; generated ones have one member each. What is read of a sample
are all its members with the headers between them. Format: POSIX.1-1988 ustar, as Python's tarfile writes it, which
readers of WebDataset use; the names are those of its specification (https://github.com/webdataset/webdataset).
"""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats._buffered import python_calls
from datagen.formats.format_base import (
    FileJob,
    LibraryReads,
    MovedError,
    OffsetRecords,
    OpenSide,
    PackedSample,
    RecordSamples,
    Sample,
    SideFile,
    Source,
    StreamCalls,
    damaged,
    no_side,
    no_such_record,
    sample_bytes,
)
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

LIBRARY = LibraryReads(call="tarfile")
BLOCK = tarfile.BLOCKSIZE
CHUNK_BYTES = 1 << 20
"""Bytes made and written at a time."""
_SIZE, _CHECKSUM, _TYPE = slice(124, 136), slice(148, 156), 156
"""Places in a header."""
_BASE_256 = 0x80
"""First bit of a size that is no octal number: GNU's way to say more than 8 GiB."""
_FILE_TYPES = (ord("0"), 0)
_MORE_HEADERS = tuple(map(ord, "xgLK"))
"""Members that say more of the next one: pax headers, GNU's long names."""


class Member(NamedTuple):
    """One header."""

    name: str
    size_bytes: int
    kind: int

    @property
    def whole_bytes(self) -> int:
        """Return what header and data take."""
        return BLOCK + padded(self.size_bytes)

    @property
    def key(self) -> str:
        """Return the sample that it belongs to."""
        folder, slash, base = self.name.rpartition("/")
        return folder + slash + base.partition(".")[0]


def padded(size_bytes: int) -> int:
    """Return the bytes of whole blocks."""
    return -(-size_bytes // BLOCK) * BLOCK


def header(name: str, size_bytes: int) -> bytes:
    """Return the header of a member; a pure function, whoever makes it and when. Raises ValueError for a long name."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size_bytes, 0o644
    return member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")


TAIL = bytes(2 * BLOCK)
"""What a tar file ends in; tarfile adds more of it, up to a whole record of tape, which no reader requests."""


def _tarfile_calls(block_bytes: int) -> Iterator[int]:
    """Return the calls of webdataset: tarfile's stream (mode `r|*`) on a file of Python's, after a look at it."""
    return python_calls(itertools.chain([tarfile.BLOCKSIZE], itertools.repeat(tarfile.RECORDSIZE)), block_bytes)


class Format:
    """Reads and writes .tar."""

    sides: tuple[SideFile, ...] = ()
    mapped = False
    stream_calls = StreamCalls(_tarfile_calls, tail_bytes=len(TAIL))

    def unfit(self, spec: DatasetSpec) -> list[str]:
        if spec.compression != "none":
            return [f"dataset.compression is {spec.compression}: format webdataset supports only none"]
        return []

    def record_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = sample_bytes(spec, shapes)
        whole: NDArray[np.int64] = BLOCK + -(-sizes // BLOCK) * BLOCK
        return whole

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.record_bytes(spec, shapes) * spec.num_samples_per_file + len(TAIL)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        size = job.record_bytes
        for number in range(job.spec.num_samples_per_file):
            writer.write(header(f"{job.running_index:08}_{number:08}.bin", size))
            for piece in _payload(job, number * size, (number + 1) * size, buffer):
                writer.write(piece)
            writer.write(bytes(-size % BLOCK))
        writer.write(TAIL)

    def open(self, source: Source, samples: int) -> RecordSamples:
        return RecordSamples(source, self.open_records(source, samples, no_side))

    def open_records(self, source: Source, samples: int, side: OpenSide) -> TarRecords:
        return TarRecords(source, samples)

    def load(self, path: str, index: int, samples: int) -> Sample:
        with open(path, "rb") as file:
            return _loaded(path, file, index)

    def load_stream(self, file: LibraryFile, index: int, samples: int) -> Sample:
        return _loaded(file.name, file, index)


def _loaded(path: str, file: BinaryIO | LibraryFile, index: int) -> Sample:
    """Read as scripts do that have no index: from member to member."""
    try:
        with tarfile.open(path, "r:", fileobj=file) as archive:
            number, key, parts = -1, None, []
            for member in archive:
                if not member.isfile():
                    continue
                mine = Member(member.name, member.size, _FILE_TYPES[0]).key
                number += mine != key
                key = mine
                if number > index:
                    break
                if number == index:
                    extracted = archive.extractfile(member)
                    assert extracted is not None  # a plain file has data
                    parts.append(extracted.read())
    except (tarfile.TarError, EOFError) as error:
        raise damaged(path, f"tarfile can't read it ({error})", 0) from error
    if not parts:
        raise no_such_record(path, index, number + 1)
    data = memoryview(b"".join(parts))
    return Sample(data, data, index * len(data))


class Packer:
    """Writes samples of any sizes, each a member named by its source; a name that came before gets a number."""

    wants_arrays = False
    ending = "tar"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._keys: set[str] = set()

    def add(self, sample: PackedSample) -> None:
        stem = sample.name.rpartition(".")[0] or sample.name
        key = "_".join(filter(None, stem.replace("/", "_").replace(".", "_").split("_")))[-80:]
        if key in self._keys:
            key = f"{key}_{len(self._keys)}"
        self._keys.add(key)  # 80 characters, a number and an ending fit ustar's 100 bytes
        size = len(sample.data)
        self._writer.write(header(f"{key}.{sample.ending}", size))
        self._writer.write(sample.data)
        self._writer.write(bytes(-size % BLOCK))

    def finish(self) -> bytes:
        self._writer.write(TAIL)
        return b""


_walked: dict[tuple[int, ...], NDArray[np.int64]] = {}
"""A local file and its samples -> where these begin: loaders' workers are forked from who has walked, and do not."""


class TarRecords(OffsetRecords):
    """One file. Its samples are taken to have one size until one of them says otherwise; then all headers are read."""

    def __init__(self, source: Source, samples: int) -> None:
        first = _first_member(source)
        super().__init__(source, samples, first.whole_bytes)
        if first.kind not in _FILE_TYPES or source.size_bytes != samples * self._record_bytes + len(TAIL):
            self._offsets = self._known()

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> list[tuple[int, int]]:
        places, at = [], 0
        for number in range(index, index + count):
            offset, size = self.span(number, 1)
            place = self._extent(data[at : at + size], offset, size)
            if place is None:
                self._offsets = self._known()
                raise MovedError
            places.append((at + place[0], place[1]))
            at += size
        return places

    def _extent(self, record: memoryview, offset: int, size: int) -> tuple[int, int] | None:
        """Return where a sample's data begins and how long it is; None where no sample of such a size lies there."""
        at, begin, end, key = 0, -1, 0, ""
        while at < size:
            member = parse(record[at : at + BLOCK], self._source.path, offset + at)
            if member is None or at + member.whole_bytes > size:
                return None if self._offsets is None else self._not_there(offset + at)
            if member.kind in _FILE_TYPES:
                if begin < 0:
                    begin, key = at + BLOCK, member.key
                elif self._offsets is None and member.key != key:
                    return None  # two small samples that together are as long as the first
                end = at + BLOCK + member.size_bytes
            at += member.whole_bytes
        return (begin, end - begin) if begin >= 0 else None

    def _not_there(self, offset: int) -> tuple[int, int]:
        raise damaged(self._source.path, "a sample whose headers changed meanwhile", offset)

    def _known(self) -> NDArray[np.int64]:
        try:
            found = os.stat(self._source.path)
        except OSError:  # an object
            return self._walk()
        key = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, self._samples
        if key not in _walked:
            _walked[key] = self._walk()
        return _walked[key]

    def _walk(self) -> NDArray[np.int64]:
        """Return where the samples begin and the last one ends, going from header to header."""
        starts: list[int] = []
        key, at, pending = None, 0, -1
        for offset, member in self._members():
            if member.kind in _MORE_HEADERS:
                pending = offset if pending < 0 else pending
            elif member.kind in _FILE_TYPES:
                if member.key != key:
                    if len(starts) == self._samples:
                        return np.array([*starts, offset if pending < 0 else pending], np.int64)
                    starts.append(offset if pending < 0 else pending)
                    key = member.key
                pending = -1
            at = offset + member.whole_bytes
        if len(starts) < self._samples:
            raise no_such_record(self._source.path, len(starts), len(starts))
        return np.array([*starts, at], np.int64)

    def _members(self) -> Iterator[tuple[int, Member]]:
        at = 0
        while at + BLOCK <= self._source.size_bytes:
            member = parse(self._source.read(at, BLOCK), self._source.path, at)
            if member is None:
                break
            if at + member.whole_bytes > self._source.size_bytes:
                raise damaged(self._source.path, f"a member of {member.size_bytes} bytes ends past the file's end", at)
            yield at, member
            at += member.whole_bytes
        if self._source.size_bytes % BLOCK or at + len(TAIL) > self._source.size_bytes:
            raise damaged(self._source.path, "a tar file without its end marker", self._source.size_bytes)


def _first_member(source: Source) -> Member:
    if source.size_bytes < BLOCK:
        raise damaged(source.path, "no tar header", 0)
    member = parse(source.read(0, BLOCK), source.path, 0)
    if member is None:
        raise no_such_record(source.path, 0, 0)
    return member


def parse(block: memoryview, path: str, offset: int) -> Member | None:
    """Take a header apart; None for the empty block at a tar's end. Raises DatasetError."""
    data = bytes(block)
    if not data.strip(b"\0"):
        return None
    plain = data[: _CHECKSUM.start] + b" " * 8 + data[_CHECKSUM.stop :]
    try:
        if len(data) < BLOCK or int(data[_CHECKSUM].strip(b" \0") or b"0", 8) != sum(plain):
            raise ValueError("a header whose checksum is wrong")
        size = data[_SIZE]
        size_bytes = int.from_bytes(size[1:], "big") if size[0] & _BASE_256 else int(size.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise damaged(path, f"no tar header ({error})", offset) from error
    name = data[:100].partition(b"\0")[0].decode(errors="replace")
    folder = data[345:500].partition(b"\0")[0].decode(errors="replace") if data[257:262] == b"ustar" else ""
    return Member(f"{folder}/{name}" if folder else name, size_bytes, data[_TYPE])


def _payload(job: FileJob, start: int, stop: int, buffer: AlignedBuffer) -> Iterator[memoryview]:
    """Make a stretch of the file's payload; each piece is good until the next."""
    chunk = buffer.view(CHUNK_BYTES)
    for block in range(start - start % BLOCK_BYTES, stop, CHUNK_BYTES):
        end = min(block + CHUNK_BYTES, stop)
        job.content.fill(chunk[: end - block], job.running_index, block)
        yield chunk[max(start - block, 0) : end - block]
