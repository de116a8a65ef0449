"""NumPy's .npz: a zip archive of two arrays, `x` (d1, d2, ..., samples) of records and `y` (samples) of zeros.

Files have the exact layout of `np.savez(path, x=..., y=[0] * samples)` (DLIO's datasets): two members, each with zip64
sizes in its local header, then the central directory, as Python's zipfile writes them with force_zip64. Files are
written as a stream and parsed in memory. Format: PKWARE's APPNOTE.TXT, sections 4.3 (records) and 4.5.3 (the zip64
field); NEP 1 for the arrays.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import numpy as np
from isal import isal_zlib

from datagen.buffers import AlignedBuffer
from datagen.formats import format_base as base
from datagen.formats import npy
from datagen.formats._source import BufferedFile
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer


class Format(base.FormatBase):
    compressions = ("none", "zip")
    transfer_bytes = 256 << 10
    _arrays = npy.Format()  # of a member

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes | None:
        if spec.compression == "zip":
            return None
        samples = spec.num_samples_per_file
        x_bytes = npy.array_bytes(np.dtype(spec.record_element_type).str, shapes, samples)
        y_bytes = len(npy.array_header("<i8", (samples,))) + 8 * samples
        y_start = LOCAL_BYTES + x_bytes
        directory_start = y_start + LOCAL_BYTES + y_bytes
        # Booleans per file, as 0 or 1: 64-bit fields of a large x, and of a distant y
        zip64_bytes = 20 * (x_bytes > ZIP64_LIMIT) + 12 * (y_start > ZIP64_LIMIT)
        end64_bytes = (_END64.size + _END64_LOCATOR.size) * (directory_start > ZIP64_LIMIT)
        entries_bytes = 2 * (_ENTRY.size + NAME_BYTES)
        return cast("base.Sizes", directory_start + entries_bytes + zip64_bytes + end64_bytes + END_BYTES)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        samples = job.spec.num_samples_per_file
        level = job.spec.compression_level if job.spec.compression == "zip" else 0
        records: Iterable[bytes | memoryview] = itertools.chain([npy.header(job)], job.payload(buffer))
        labels = [npy.array_header("<i8", (samples,)), bytes(8 * samples)]
        entries = [_write_member(writer, "x.npy", level, records), _write_member(writer, "y.npy", level, labels)]
        writer.write(_directory(entries, writer.position))

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> npy.ArrayFile:
        """Parse the archive; samples are copied only if they are compressed or interleaved."""
        entry = _members_to_read(_entries(data, *_find_directory(data)), samples)[0]
        member, start = _packed_member(data, entry)
        if entry.method != STORED:
            member = _inflate(member, scratch(entry.plain_bytes), start, entry.crc)
        try:
            return self._arrays.parse(member, samples, scratch)
        except base.DamagedError as error:
            raise base.DamagedError(str(error), entry.start) from error

    def read_matched(self, file: BufferedFile, samples: int) -> None:
        """Read as np.load does: Python's zipfile on a buffered file, arrays in pieces."""
        file.read(len(npy.MAGIC))
        # The directory, as in zipfile.ZipFile (`_EndRecData`, `_RealGetContents`)
        file.seek_from_end(END_BYTES)
        file.read_all()
        file.seek_from_end(END_BYTES + _END64_LOCATOR.size)
        if bytes(file.read(_END64_LOCATOR.size)[:4]) == b"PK\x06\x07":
            file.seek_from_end(END_BYTES + _END64_LOCATOR.size + _END64.size)
            file.read(_END64.size)
        position, count, size = _find_directory(file.image)
        file.seek(position)
        file.read(size)
        members = _members_to_read(_entries(file.image, position, count, size), samples)
        for entry in sorted(members, key=lambda entry: entry.start):
            _read_by_zipfile(file, entry)

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        with open(path, "rb") as file, np.load(file) as archive:  # given a path, np.load leaves a damaged file open
            entries = [
                Entry(info.filename, 0, 0, info.compress_size, info.file_size, info.header_offset)
                for info in archive.zip.infolist()
            ]
            members = _members_to_read(entries, samples)
            arrays = {entry.name: archive[entry.name] for entry in sorted(members, key=lambda entry: entry.start)}
            return npy.sample_of(arrays[members[0].name], index, samples)


NUMPY_READ_BYTES = 1 << 18  # np.load reads a member in pieces of this size (`BUFFER_SIZE` in numpy/lib/_format_impl.py)
MAX_LABEL_BYTES = 4096  # maximum size of a member that is taken for a label and not read, as DLIO does not read `y`
ZIPFILE_MIN_READ_BYTES = 4096  # minimum that Python's zipfile reads of a member (`ZipExtFile.MIN_READ_SIZE`)


def _read_by_zipfile(file: BufferedFile, entry: Entry) -> None:
    """Read a member by the calls of np.load (`read_array`) and zipfile (`ZipExtFile.read`).

    np.load requests decompressed pieces: the header, then items of 256 KiB. For each, zipfile reads as many compressed
    bytes as are missing of the piece, at least 4096, and keeps what it decompresses beyond the piece. How much a piece
    is compressed is unknown before it is decompressed, so the member's mean ratio is assumed.
    """
    file.seek(entry.start)
    file.read(sum(_LOCAL.unpack(file.read(_LOCAL.size))[-2:]))
    packed, _ = _packed_member(file.image, entry)
    header_bytes = 2 * npy.ALIGNMENT - npy.PREFIX_BYTES  # the usual size
    if entry.method == STORED:
        header_bytes = npy.header_bytes(packed[: npy.PREFIX_BYTES])
    items = range(npy.PREFIX_BYTES + header_bytes, entry.plain_bytes, NUMPY_READ_BYTES)
    pieces = [npy.PREFIX_BYTES, header_bytes, *(min(NUMPY_READ_BYTES, entry.plain_bytes - start) for start in items)]
    unread_bytes, ratio = len(packed), entry.plain_bytes / max(1, len(packed))
    packed_ahead = plain_ahead = 0.0  # bytes read but not decompressed, and decompressed but not requested
    for size in pieces:
        missing = size - plain_ahead
        plain_ahead = max(0.0, -missing)
        while missing > 0 and (unread_bytes or packed_ahead >= 1):
            if unread_bytes and missing > packed_ahead:
                read_bytes = min(max(round(missing - packed_ahead), ZIPFILE_MIN_READ_BYTES), unread_bytes)
                file.read(read_bytes)
                unread_bytes -= read_bytes
                packed_ahead += read_bytes
            plain_bytes = min(packed_ahead * ratio, max(missing, ZIPFILE_MIN_READ_BYTES))
            packed_ahead -= plain_bytes / ratio
            plain_ahead = max(0.0, plain_bytes - missing)
            missing -= plain_bytes
    file.read(unread_bytes)


STORED, DEFLATED = 0, 8  # compression methods (APPNOTE 4.4.5)
ZIP64_LIMIT = (1 << 31) - 1  # zipfile stores larger sizes and offsets as 64-bit numbers in the central directory
DATE_1980 = 1 << 5 | 1  # MS-DOS date 1980-01-01, so that a file's bytes do not depend on when it was made
ZIP64_VERSION = 45  # version of the zip format that introduced 64-bit sizes
UNIX = 3  # "version made by" a Unix system, as Python's zipfile writes it (APPNOTE 4.4.2)
FILE_MODE = 0o600  # mode of an extracted member
END_BYTES = 22  # the end-of-central-directory record, without a comment (APPNOTE 4.3.16)

_DAMAGED = cast("type[Exception]", isal_zlib.error)  # the library's type stub calls the class an instance
_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_LOCAL_ZIP64 = struct.Struct("<HHQQ")
_ENTRY = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_END = struct.Struct("<4sHHHHLLH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQHHLLQQQQ")
NAME_BYTES = len("x.npy")
LOCAL_BYTES = _LOCAL.size + NAME_BYTES + _LOCAL_ZIP64.size
INFLATE_BYTES = 1 << 20  # bytes decompressed at a time
MAX_INFLATION = 1032  # maximum compression ratio of deflate (zlib's technical notes)


class Entry(NamedTuple):
    """A member as listed in the central directory."""

    name: str
    method: int
    crc: int
    packed_bytes: int
    plain_bytes: int
    start: int  # offset of the member's local header


def _write_member(writer: Writer, name: str, level: int, pieces: Iterable[bytes | memoryview]) -> Entry:
    """Write a member, deflated unless `level` is 0. Its local header is written last, when the checksum is known.

    Sizes are in a zip64 field of the header, as zipfile writes it with force_zip64.
    """
    start, crc, plain_bytes = writer.position, 0, 0
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15) if level else None
    writer.skip(LOCAL_BYTES)
    for piece in pieces:
        crc = isal_zlib.crc32(piece, crc)
        plain_bytes += len(piece)
        writer.write(deflate.compress(piece) if deflate else piece)
    if deflate:
        writer.write(deflate.flush())
    method, packed_bytes = DEFLATED if deflate else STORED, writer.position - start - LOCAL_BYTES
    tail = crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), _LOCAL_ZIP64.size
    header = _LOCAL.pack(b"PK\x03\x04", ZIP64_VERSION, 0, method, 0, DATE_1980, *tail) + name.encode()
    writer.write_at(header + _LOCAL_ZIP64.pack(1, 16, plain_bytes, packed_bytes), start)
    return Entry(name, method, crc, packed_bytes, plain_bytes, start)


def _packed_member(data: memoryview, entry: Entry) -> tuple[memoryview, int]:
    """Return a member's bytes as stored in the file, and their offset."""
    signature, *_, name_bytes, extra_bytes = _LOCAL.unpack_from(data, entry.start)
    if signature != b"PK\x03\x04":
        raise base.DamagedError("no member where the directory points", entry.start)
    if entry.method not in (STORED, DEFLATED):
        raise base.DamagedError(f"member {entry.name}: NumPy knows no compression method {entry.method}", entry.start)
    start = entry.start + _LOCAL.size + name_bytes + extra_bytes
    member = data[start : start + entry.packed_bytes]
    if len(member) != entry.packed_bytes:
        raise base.DamagedError(f"member {entry.name} ends beyond the end of the file", entry.start)
    if entry.method == STORED and entry.plain_bytes != entry.packed_bytes:
        raise base.DamagedError(f"member {entry.name} is stored, yet its two sizes differ", entry.start)
    if entry.plain_bytes > MAX_INFLATION * (entry.packed_bytes + 1):
        raise base.DamagedError(f"member {entry.name} can't hold the {entry.plain_bytes} bytes stated", entry.start)
    return member, start


def _members_to_read(entries: Iterable[Entry], samples: int) -> list[Entry]:
    """Return the members to be read, first the one that holds the samples: `x` in DLIO's datasets.

    An archive of one sample may be the user's own, such as volume.npy (9 MB), mask.npy (1 MB) and id.npy (136 B): all
    arrays but labels are read (volume and mask), and the largest holds the sample.
    """
    arrays = {entry.name: entry for entry in entries if entry.name.endswith(".npy")}
    sample_array = arrays.get("x.npy")
    if samples == 1 and arrays:
        sample_array = sample_array or max(arrays.values(), key=lambda entry: entry.plain_bytes)
        large = [entry for entry in arrays.values() if entry.plain_bytes > MAX_LABEL_BYTES]
        return [sample_array, *(entry for entry in large if entry is not sample_array)]
    if sample_array is None:
        raise base.DamagedError("no member x.npy in the zip directory", None)
    return [sample_array]


def _entries(data: memoryview, position: int, count: int, size: int) -> Iterator[Entry]:
    """Yield the members that the central directory at `position` lists."""
    stop = position + size
    for _ in range(count):
        signature, _, _, _, method, _, _, crc, *sizes, _, _, _, start = _ENTRY.unpack_from(data, position)
        if signature != b"PK\x01\x02" or position >= stop:
            raise base.DamagedError("the zip directory is damaged", position)
        packed, plain, name_bytes, extra_bytes, comment_bytes = sizes
        name_at = position + _ENTRY.size
        extra_at = name_at + name_bytes
        extra = data[extra_at : extra_at + extra_bytes]
        plain, packed, start = _zip64_values([plain, packed, start], extra)
        name = bytes(data[name_at:extra_at]).decode(errors="replace")
        yield Entry(name, method, crc, packed, plain, start)
        position = extra_at + extra_bytes + comment_bytes


def _find_directory(data: memoryview) -> tuple[int, int, int]:
    """Return offset, number of entries and bytes of the central directory, from the record at the end of the file."""
    end = len(data) - END_BYTES
    if end < 0 or bytes(data[end : end + 4]) != b"PK\x05\x06":
        reason = "the file is truncated, not .npz, or ends in a comment, as NumPy writes none"
        raise base.DamagedError(f"no end-of-central-directory record: {reason}", len(data))
    *_, count, size, position, _ = _END.unpack_from(data, end)
    if position == 0xFFFFFFFF or size == 0xFFFFFFFF or count == 0xFFFF:
        end = _END64_LOCATOR.unpack_from(data, end - _END64_LOCATOR.size)[2]
        signature, *_, count, size, position = _END64.unpack_from(data, end)
        if signature != b"PK\x06\x06":
            raise base.DamagedError("the zip64 end-of-central-directory record is missing", end)
    if position + size != end:
        raise base.DamagedError("the zip directory does not end where the end record says", end)
    return position, count, size


def _zip64_values(values: list[int], extra: memoryview) -> list[int]:
    """Replace each value of 0xFFFFFFFF by the next 64-bit value of the zip64 field (id 1)."""
    position = 0
    while position + 4 <= len(extra):
        field_id, size = struct.unpack_from("<HH", extra, position)
        if field_id == 1:
            wide_values = iter(struct.unpack_from(f"<{size // 8}Q", extra, position + 4))
            return [next(wide_values, value) if value == 0xFFFFFFFF else value for value in values]
        position += 4 + size
    return values


def _directory(entries: list[Entry], start: int) -> bytes:
    """Return the central directory at offset `start`, and the records after it, as zipfile writes them."""
    version, data = ZIP64_VERSION, b""
    for name, method, crc, packed, plain, member_start in entries:
        wide: list[int] = []  # numbers above the limit, which move to a zip64 field
        if max(plain, packed) > ZIP64_LIMIT:
            wide += [plain, packed]
            plain = packed = 0xFFFFFFFF
        if member_start > ZIP64_LIMIT:
            wide.append(member_start)
            member_start = 0xFFFFFFFF
        extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        head = UNIX << 8 | version, version, 0, method, 0, DATE_1980
        tail = crc, packed, plain, len(name), len(extra), 0, 0, 0, FILE_MODE << 16, member_start
        data += _ENTRY.pack(b"PK\x01\x02", *head, *tail)
        data += name.encode() + extra
    count, size = len(entries), len(data)
    if start > ZIP64_LIMIT:
        data += _END64.pack(b"PK\x06\x06", _END64.size - 12, version, version, 0, 0, count, count, size, start)
        data += _END64_LOCATOR.pack(b"PK\x06\x07", 0, start + size, 1)
    return data + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, min(start, 0xFFFFFFFF), 0)


def _inflate(packed: memoryview, out: memoryview, offset: int, crc: int) -> memoryview:
    """Decompress a member into `out`, which has its decompressed size, in pieces that stay in the cache.

    Damaged data mostly decompresses without an error, so the CRC32 is compared with `crc`.
    """
    inflater = isal_zlib.decompressobj(-15)  # raw deflate, as zip has it
    plain_bytes = checksum = 0
    try:
        for start in range(0, len(packed), INFLATE_BYTES):
            piece = inflater.decompress(packed[start : start + INFLATE_BYTES], INFLATE_BYTES)
            while piece:
                out[plain_bytes : plain_bytes + len(piece)] = piece
                checksum = isal_zlib.crc32(piece, checksum)
                plain_bytes += len(piece)
                piece = inflater.decompress(inflater.unconsumed_tail, INFLATE_BYTES)
    except (_DAMAGED, ValueError) as error:
        raise base.DamagedError(f"deflated data is damaged ({error})", offset) from error
    if not inflater.eof or plain_bytes != len(out):
        raise base.DamagedError(f"deflated data unpacks to {plain_bytes} bytes, not {len(out)}", offset)
    if checksum != crc:
        raise base.DamagedError(f"deflated data does not match its checksum (CRC32 {checksum:08x})", offset)
    return out
