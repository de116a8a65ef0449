"""WebDataset: tar files of samples. The key of a member is its name up to the first dot of the base name.

Consecutive members with the same key are one sample: `a/1.jpg` and `a/1.cls` are one, and `a/2.jpg` is another. All
members of a sample are read together, with the headers between them; generated samples have one member each. Format:
POSIX.1-1988 ustar, as Python's tarfile writes it; names as in https://github.com/webdataset/webdataset.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer, round_up
from datagen.formats import format_base as base
from datagen.formats._source import python_buffer_bytes, python_calls
from datagen.layout import even_places
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

ENDINGS = ("tar",)
BLOCK = tarfile.BLOCKSIZE
TAIL = bytes(2 * BLOCK)  # end marker; tarfile also pads the file to a multiple of 10240 bytes, which readers don't need
_SIZE, _CHECKSUM, _TYPE = slice(124, 136), slice(148, 156), 156  # positions of fields in a header
_BASE_256 = 0x80  # set in the first byte of a binary size: GNU's extension for sizes above 8 GiB
_FILE_TYPES = (ord("0"), 0)  # of regular files


def _tarfile_calls(block_bytes: int) -> Iterator[int]:
    """Yield the sizes of webdataset's read calls: one block, then those of tarfile's stream mode (`r|*`).

    tarfile requests 10240 bytes at a time from a buffered Python file. The calls of that file repeat as soon as the
    requests add up to whole buffers, so only one such cycle is computed.
    """
    requests = math.lcm(python_buffer_bytes(block_bytes), tarfile.RECORDSIZE) // tarfile.RECORDSIZE
    sizes = itertools.chain([tarfile.BLOCKSIZE], itertools.repeat(tarfile.RECORDSIZE, requests))
    calls = python_calls(sizes, block_bytes)
    return itertools.chain([next(calls)], itertools.cycle(calls))


class Format(base.RecordFormat):
    stream_calls = base.StreamCalls(_tarfile_calls)
    tail_bytes = len(TAIL)

    def record_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        data_bytes = base.sample_bytes(spec, shapes)
        return BLOCK + data_bytes + -data_bytes % BLOCK  # header, data, padding

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        size = job.record_bytes
        for number in range(job.spec.num_samples_per_file):
            data = job.payload(buffer, number * size, (number + 1) * size)
            _write_member(writer, f"{job.running_index:08}_{number:08}.bin", size, data)
        writer.write(TAIL)

    def open_records(self, inputs: base.RecordInputs) -> TarRecords:
        return TarRecords(inputs)

    def offsets(self, file: BinaryIO) -> list[int]:
        """Return the offset of each sample's first header, which is an extended one for a long name or size."""
        offsets: list[int] = []
        sample_key = None
        end = file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # otherwise, all members would stay in memory
                    key = key_of(member.name)
                    if member.isfile() and not key.rpartition("/")[2].startswith(".") and key != sample_key:
                        offsets.append(member.offset)
                        sample_key = key
                if archive.offset + len(TAIL) > end:
                    raise base.DamagedError("a tar file without its end marker", end)
                return [*offsets, archive.offset]
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise base.DamagedError(f"tarfile can't read it ({error})") from error

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        """Read as scripts without an index do: member after member."""
        number = -1
        with tarfile.open(path, "r:") as archive:
            files = (member for member in archive if member.isfile())
            for number, (_, members) in enumerate(itertools.groupby(files, lambda member: key_of(member.name))):
                if number == index:
                    extracted = map(archive.extractfile, members)
                    data = memoryview(b"".join(file.read() for file in extracted if file is not None))
                    return base.Sample(data, data, index * len(data))
        raise base.no_such_record(index, number + 1)


class Packer:
    """Writes samples of any size as members named after their source files; it appends a number to duplicate names."""

    ending = "tar"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._keys: set[str] = set()

    def add(self, sample: base.PackedSample) -> None:
        stem = sample.name.rpartition(".")[0] or sample.name
        base_key = "_".join(re.findall("[^/._]+", stem)).encode(errors="replace")[-80:].decode(errors="ignore")
        key, number = base_key, len(self._keys)
        while key in self._keys:  # consecutive members with equal keys would be one sample
            key, number = f"{base_key}_{number}", number + 1
        self._keys.add(key)  # 80 bytes, a number and an ending fit the 100 bytes of ustar's name
        _write_member(self._writer, f"{key}.{sample.ending}", len(sample.data), [sample.data])

    def finish(self) -> bytes:
        self._writer.write(TAIL)
        return b""


def _write_member(writer: Writer, name: str, size_bytes: int, chunks: Iterable[memoryview]) -> None:
    """Write a member without user, group and time. Raises ValueError if its name is too long."""
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    member.mode = 0o644
    writer.write(member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
    for chunk in chunks:
        writer.write(chunk)
    writer.write(bytes(-size_bytes % BLOCK))


def key_of(name: str) -> str:
    """Return the key of the sample that a member belongs to."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


class TarRecords(base.RecordFile):
    """An open file. If records have one length, the headers of a batch are checked together, else one by one."""

    def __init__(self, inputs: base.RecordInputs) -> None:
        source, samples, record_bytes = inputs.source, inputs.samples, 0
        if inputs.offsets is None:
            if source.size_bytes < BLOCK:
                raise base.DamagedError("no tar header")
            first = parse(source.read(0, BLOCK), 0)
            if first is None:
                raise base.no_such_record(0, 0)
            record_bytes = first.stored_bytes
            if source.size_bytes != samples * record_bytes + len(TAIL):
                raise base.DamagedError(f"it does not hold {samples} members of one size", source.size_bytes)
        super().__init__(inputs, record_bytes)

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> base.Extents:
        record_bytes = self._record_bytes
        if count > 1 and record_bytes:
            _, data_bytes = self.extent(data[:record_bytes], index * record_bytes, verify)
            headers = np.frombuffer(data, np.uint8, count * record_bytes).reshape(count, record_bytes)[:, :BLOCK]
            if BLOCK + round_up(data_bytes, BLOCK) == record_bytes and _are_equal(headers):
                return even_places(BLOCK, record_bytes, data_bytes, count)
        return super().samples(index, count, data, verify)

    def extent(self, record: memoryview, offset: int, verify: bool) -> tuple[int, int]:
        """Return (start, bytes) of a sample's data, from the first to the last byte of its files."""
        position = begin = end = 0
        while position < len(record):
            member = parse(record[position : position + BLOCK], offset + position)
            if member is None or position + member.stored_bytes > len(record):  # not as when the offsets were read
                raise base.DamagedError("a sample ends where none did before", offset + position)
            if member.is_file:
                begin = begin or position + BLOCK
                end = position + BLOCK + member.size_bytes
            position += member.stored_bytes
        if not end:
            raise base.DamagedError("a sample without a file", offset)
        return begin, end - begin


class Member(NamedTuple):
    """What a header says of its member."""

    size_bytes: int  # of the data
    stored_bytes: int  # header and padded data
    is_file: bool


def _are_equal(headers: NDArray[np.uint8]) -> bool:
    """Return whether headers (one per row) have valid checksums, and differ only in name, mode, owner and time.

    Only checksums in the usual notation count as valid: six octal digits, a NUL and a space. `parse` accepts others.
    """
    first = headers[0]
    if (headers[:, _TYPE - 2 :] != first[_TYPE - 2 :]).any() or (headers[:, _SIZE] != first[_SIZE]).any():
        return False
    digits = headers[:, _CHECKSUM.start : _CHECKSUM.start + 6] ^ np.uint8(ord("0"))
    stated_sums = digits @ 8 ** np.arange(5, -1, -1)
    sums = headers.sum(1, np.int64) - headers[:, _CHECKSUM].sum(1, np.int64) + 8 * ord(" ")  # its own field: spaces
    return bool((digits < 8).all() and (stated_sums == sums).all())


def parse(block: memoryview, offset: int) -> Member | None:
    """Parse a header at `offset` of the file; return None for a block of zeros, the end. Raises DamagedError."""
    data = bytes(block)
    if not data.strip(b"\0"):
        return None
    summed = data[: _CHECKSUM.start] + b" " * 8 + data[_CHECKSUM.stop :]
    try:
        if len(data) < BLOCK or int(data[_CHECKSUM].strip(b" \0") or b"0", 8) != sum(summed):
            raise ValueError("a header whose checksum is wrong")
        size = data[_SIZE]
        size_bytes = int.from_bytes(size[1:], "big") if size[0] & _BASE_256 else int(size.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise base.DamagedError(f"no tar header ({error})", offset) from error
    return Member(size_bytes, BLOCK + round_up(size_bytes, BLOCK), data[_TYPE] in _FILE_TYPES)
