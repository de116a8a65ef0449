"""NumPy's .npz: a zip archive of two arrays, `x` (d1, d2, ..., samples) of records and `y` (samples) of zeros.

Files have the exact layout of `np.savez(path, x=..., y=[0] * samples)` (DLIO's datasets). Two members, whose local
headers have 64-bit sizes in a zip64 field, are followed by the central directory, as Python's zipfile writes them with
force_zip64. Files are written as a stream and parsed in memory. Format: PKWARE's APPNOTE.TXT, sections 4.3 (records)
and 4.5.3 (the zip64 field); NEP 1 for the arrays.
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

_LOCAL = struct.Struct("<4sHHHHHLLLHH")  # local header of a member (APPNOTE 4.3.7)
_LOCAL_ZIP64 = struct.Struct("<HHQQ")  # its zip64 field
_ENTRY = struct.Struct("<4sHHHHHHLLLHHHHHLL")  # entry of the central directory (4.3.12)
_ENTRY_TO_READ = struct.Struct("<4s6xH4xLLLHHH8xL")  # the same, without the fields that readers ignore
_END64 = struct.Struct("<4sQHHLLQQQQ")  # zip64 end-of-central-directory record (4.3.14)
_END64_LOCATOR = struct.Struct("<4sLQL")  # where that record is (4.3.15)
_END = struct.Struct("<4sHHHHLLH")  # end-of-central-directory record, without a comment (4.3.16)
NAME_BYTES = len("x.npy")
LOCAL_BYTES = _LOCAL.size + NAME_BYTES + _LOCAL_ZIP64.size
STORED, DEFLATED = 0, 8  # compression methods (4.4.5)
ZIP64_LIMIT = (1 << 31) - 1  # zipfile stores larger sizes and offsets as 64-bit numbers in the central directory
IN_ZIP64 = 0xFFFFFFFF  # a 32-bit size or offset whose value is in the zip64 field
DATE_1980 = 1 << 5 | 1  # MS-DOS date 1980-01-01, so that a file's bytes do not depend on when it was made
ZIP64_VERSION = 45  # version of the zip format that introduced 64-bit sizes
MADE_BY = 3 << 8 | ZIP64_VERSION  # "version made by" a Unix system (3), as Python's zipfile writes it (4.4.2)
FILE_MODE = 0o600  # mode of an extracted member
RAW_DEFLATE = -15  # zlib's `wbits` for deflate without zlib's header and checksum, as zip has it
INFLATE_BYTES = 1 << 20  # bytes decompressed at a time
MAX_INFLATION = 1032  # maximum compression ratio of deflate (zlib's technical notes)
MAX_LABEL_BYTES = 4096  # members of at most this size count as labels, which are not read, as DLIO does not read `y`
NUMPY_READ_BYTES = 1 << 18  # np.load reads a member in chunks of this size (`BUFFER_SIZE` in numpy/lib/_format_impl.py)
ZIPFILE_MIN_READ_BYTES = 4096  # minimum that Python's zipfile reads of a member (`ZipExtFile.MIN_READ_SIZE`)
_DAMAGED = cast("type[Exception]", isal_zlib.error)  # the library's type stub calls the class an instance


class Format(base.FormatBase):
    compressions = ("none", "zip")
    transfer_bytes = 256 << 10

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes | None:
        if spec.compression == "zip":
            return None
        samples = spec.num_samples_per_file
        x_bytes = npy.array_bytes(np.dtype(spec.record_element_type).str, shapes, samples)
        y_bytes = len(npy.array_header("<i8", (samples,))) + 8 * samples
        y_start = LOCAL_BYTES + x_bytes
        directory_start = y_start + LOCAL_BYTES + y_bytes
        # The zip64 field of an entry has 4 bytes, and 8 for each number: two sizes of a large x, or the offset of y
        zip64_bytes = np.where(x_bytes > ZIP64_LIMIT, 4 + 2 * 8, 0) + np.where(y_start > ZIP64_LIMIT, 4 + 8, 0)
        end64_bytes = np.where(directory_start > ZIP64_LIMIT, _END64.size + _END64_LOCATOR.size, 0)
        entries_bytes = 2 * (_ENTRY.size + NAME_BYTES)
        return cast("base.Sizes", directory_start + entries_bytes + zip64_bytes + end64_bytes + _END.size)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        samples = job.spec.num_samples_per_file
        level = job.spec.compression_level if job.spec.compression == "zip" else 0
        records: Iterable[bytes | memoryview] = itertools.chain([npy.header(job)], job.payload(buffer))
        labels = [npy.array_header("<i8", (samples,)), bytes(8 * samples)]
        entries = [_write_member(writer, "x.npy", level, records), _write_member(writer, "y.npy", level, labels)]
        writer.write(_encode_directory(entries, writer.position))

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> npy.ArrayFile:
        """Parse the archive; samples are copied only if they are compressed or interleaved."""
        entry = _members_to_read(_entries(data, _find_directory(data)), samples)[0]
        array, offset = _stored_data(data, entry)
        if entry.method == DEFLATED:
            array = _inflate(array, scratch(entry.plain_bytes), offset, entry.crc)
        try:
            return npy.Format().parse(array, samples, scratch)
        except base.DamagedError as error:
            raise base.DamagedError(str(error), entry.header_offset) from error

    def read_matched(self, file: BufferedFile, samples: int) -> None:
        """Read as np.load does: Python's zipfile on a buffered file, arrays in chunks."""
        file.read(len(npy.MAGIC))
        # Find and read the directory as zipfile.ZipFile does (`_EndRecData`, `_RealGetContents`)
        file.seek_from_end(_END.size)
        file.read_all()
        file.seek_from_end(_END.size + _END64_LOCATOR.size)
        if bytes(file.read(_END64_LOCATOR.size)[:4]) == b"PK\x06\x07":
            file.seek_from_end(_END.size + _END64_LOCATOR.size + _END64.size)
            file.read(_END64.size)
        directory = _find_directory(file.image)
        file.seek(directory.offset)
        file.read(directory.size_bytes)
        members = _members_to_read(_entries(file.image, directory), samples)
        for entry in sorted(members, key=lambda entry: entry.header_offset):
            _read_by_zipfile(file, entry)

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        with open(path, "rb") as file, np.load(file) as archive:  # given a path, np.load leaves a damaged file open
            infos = archive.zip.infolist()
            entries = [Entry(info.filename, 0, 0, 0, info.file_size, info.header_offset) for info in infos]
            members = _members_to_read(entries, samples)
            in_file_order = sorted(members, key=lambda entry: entry.header_offset)
            arrays = {entry.name: archive[entry.name] for entry in in_file_order}
            return npy.sample_of(arrays[members[0].name], index, samples)


class Entry(NamedTuple):
    """A member as listed in the central directory."""

    name: str
    method: int
    crc: int
    packed_bytes: int  # compressed
    plain_bytes: int  # uncompressed
    header_offset: int  # of the member's local header


class Directory(NamedTuple):
    """Where the central directory is."""

    offset: int
    size_bytes: int
    members: int  # number of members that it lists


def _write_member(writer: Writer, name: str, level: int, chunks: Iterable[bytes | memoryview]) -> Entry:
    """Write a member, deflated unless `level` is 0. Its local header is written last, when the checksum is known."""
    start = writer.position
    crc = plain_bytes = 0
    deflate = zlib.compressobj(level, zlib.DEFLATED, RAW_DEFLATE) if level else None
    writer.skip(LOCAL_BYTES)
    for chunk in chunks:
        crc = isal_zlib.crc32(chunk, crc)
        plain_bytes += len(chunk)
        writer.write(deflate.compress(chunk) if deflate else chunk)
    if deflate:
        writer.write(deflate.flush())
    method = DEFLATED if deflate else STORED
    packed_bytes = writer.position - start - LOCAL_BYTES
    header = _LOCAL.pack(
        b"PK\x03\x04", ZIP64_VERSION, 0, method, 0, DATE_1980, crc, IN_ZIP64, IN_ZIP64, len(name), _LOCAL_ZIP64.size
    )
    writer.write_at(header + name.encode() + _LOCAL_ZIP64.pack(1, 16, plain_bytes, packed_bytes), start)
    return Entry(name, method, crc, packed_bytes, plain_bytes, start)


def _encode_directory(entries: list[Entry], offset: int) -> bytes:
    """Return the central directory at `offset` of the file, and the records after it, as zipfile writes them."""
    version, data = ZIP64_VERSION, b""
    for name, method, crc, packed, plain, header_offset in entries:
        zip64: list[int] = []  # the sizes and offset above the limit
        if max(plain, packed) > ZIP64_LIMIT:
            zip64 += [plain, packed]
            plain = packed = IN_ZIP64
        if header_offset > ZIP64_LIMIT:
            zip64.append(header_offset)
            header_offset = IN_ZIP64
        extra = struct.pack(f"<HH{len(zip64)}Q", 1, 8 * len(zip64), *zip64) if zip64 else b""
        entry = _ENTRY.pack(
            b"PK\x01\x02", MADE_BY, version, 0, method, 0, DATE_1980, crc, packed, plain, len(name), len(extra),
            0, 0, 0, FILE_MODE << 16, header_offset,
        )  # fmt: skip
        data += entry + name.encode() + extra
    count, size = len(entries), len(data)
    if offset > ZIP64_LIMIT:
        data += _END64.pack(b"PK\x06\x06", _END64.size - 12, version, version, 0, 0, count, count, size, offset)
        data += _END64_LOCATOR.pack(b"PK\x06\x07", 0, offset + size, 1)
    return data + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, min(offset, IN_ZIP64), 0)


def _find_directory(data: memoryview) -> Directory:
    """Find the central directory by the record at the end of the file. Raises DamagedError."""
    end = len(data) - _END.size
    if end < 0 or bytes(data[end : end + 4]) != b"PK\x05\x06":
        reason = "the file is truncated, not .npz, or ends in a comment, as NumPy writes none"
        raise base.DamagedError(f"no end-of-central-directory record: {reason}", len(data))
    *_, count, size, offset, _ = _END.unpack_from(data, end)
    if offset == IN_ZIP64 or size == IN_ZIP64 or count == 0xFFFF:
        end = _END64_LOCATOR.unpack_from(data, end - _END64_LOCATOR.size)[2]
        signature, *_, count, size, offset = _END64.unpack_from(data, end)
        if signature != b"PK\x06\x06":
            raise base.DamagedError("the zip64 end-of-central-directory record is missing", end)
    if offset + size != end:
        raise base.DamagedError("the zip directory does not end where the end record says", end)
    return Directory(offset, size, count)


def _entries(data: memoryview, directory: Directory) -> Iterator[Entry]:
    """Yield the members that the central directory lists. Raises DamagedError."""
    position = directory.offset
    stop = position + directory.size_bytes
    for _ in range(directory.members):
        fields = _ENTRY_TO_READ.unpack_from(data, position)
        signature, method, crc, packed, plain, name_bytes, extra_bytes, comment_bytes, header_offset = fields
        if signature != b"PK\x01\x02" or position >= stop:
            raise base.DamagedError("the zip directory is damaged", position)
        name_start = position + _ENTRY.size
        extra_start = name_start + name_bytes
        extra = data[extra_start : extra_start + extra_bytes]
        plain, packed, header_offset = _zip64_values([plain, packed, header_offset], extra)
        name = bytes(data[name_start:extra_start]).decode(errors="replace")
        yield Entry(name, method, crc, packed, plain, header_offset)
        position = extra_start + extra_bytes + comment_bytes


def _zip64_values(values: list[int], extra: memoryview) -> list[int]:
    """Return values, each `IN_ZIP64` replaced by the next number of the zip64 field (id 1) in an entry's `extra`."""
    position = 0
    while position + 4 <= len(extra):
        field_id, size = struct.unpack_from("<HH", extra, position)
        if field_id == 1:
            zip64 = iter(struct.unpack_from(f"<{size // 8}Q", extra, position + 4))
            return [next(zip64, value) if value == IN_ZIP64 else value for value in values]
        position += 4 + size
    return values


def _members_to_read(entries: Iterable[Entry], samples: int) -> list[Entry]:
    """Return the members to read; the first one holds the samples. In DLIO's datasets that is `x`.

    An archive of one sample may be the user's own, such as volume.npy (9 MB), mask.npy (1 MB) and id.npy (136 B). Then
    all arrays except labels are read (volume and mask), and the largest counts as the sample (volume).
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


def _stored_data(data: memoryview, entry: Entry) -> tuple[memoryview, int]:
    """Return a member's data as stored in the file, and its offset. Raises DamagedError."""
    name, start = entry.name, entry.header_offset
    signature, *_, name_bytes, extra_bytes = _LOCAL.unpack_from(data, start)
    if signature != b"PK\x03\x04":
        raise base.DamagedError("no member where the directory points", start)
    if entry.method not in (STORED, DEFLATED):
        raise base.DamagedError(f"member {name}: NumPy knows no compression method {entry.method}", start)
    data_start = start + _LOCAL.size + name_bytes + extra_bytes
    member = data[data_start : data_start + entry.packed_bytes]
    if len(member) != entry.packed_bytes:
        raise base.DamagedError(f"member {name} ends beyond the end of the file", start)
    if entry.method == STORED and entry.plain_bytes != entry.packed_bytes:
        raise base.DamagedError(f"member {name} is stored, yet its two sizes differ", start)
    if entry.plain_bytes > MAX_INFLATION * (entry.packed_bytes + 1):
        raise base.DamagedError(f"member {name} can't hold the {entry.plain_bytes} bytes stated", start)
    return member, data_start


def _inflate(packed: memoryview, out: memoryview, offset: int, crc: int) -> memoryview:
    """Decompress a member's data `packed` into `out`, which has the uncompressed size; return `out`.

    It works in chunks that stay in the CPU's cache. Damaged data mostly decompresses without an error, so the CRC32 is
    compared with `crc`. Raises DamagedError; `offset` is where `packed` begins in the file.
    """
    inflater = isal_zlib.decompressobj(RAW_DEFLATE)
    plain_bytes = checksum = 0
    try:
        for start in range(0, len(packed), INFLATE_BYTES):
            chunk = inflater.decompress(packed[start : start + INFLATE_BYTES], INFLATE_BYTES)
            while chunk:
                out[plain_bytes : plain_bytes + len(chunk)] = chunk
                checksum = isal_zlib.crc32(chunk, checksum)
                plain_bytes += len(chunk)
                chunk = inflater.decompress(inflater.unconsumed_tail, INFLATE_BYTES)
    except (_DAMAGED, ValueError) as error:
        raise base.DamagedError(f"deflated data is damaged ({error})", offset) from error
    if not inflater.eof or plain_bytes != len(out):
        raise base.DamagedError(f"deflated data unpacks to {plain_bytes} bytes, not {len(out)}", offset)
    if checksum != crc:
        raise base.DamagedError(f"deflated data does not match its checksum (CRC32 {checksum:08x})", offset)
    return out


def _read_by_zipfile(file: BufferedFile, entry: Entry) -> None:
    """Read a member by the calls of np.load (`read_array`) and zipfile (`ZipExtFile.read`).

    np.load requests uncompressed bytes: the array's header, then items, 256 KiB at a time. If N bytes of a request are
    not in zipfile's buffer, it reads N compressed bytes, at least 4096, and buffers what they decompress to beyond the
    request. Nothing is decompressed here; all data is assumed to have the member's mean compression ratio.
    """
    file.seek(entry.header_offset)
    *_, name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
    file.read(name_bytes + extra_bytes)
    stored, _ = _stored_data(file.image, entry)
    header_bytes = 2 * npy.ALIGNMENT - npy.PREFIX_BYTES  # the usual size
    if entry.method == STORED:
        header_bytes = npy.header_bytes(stored[: npy.PREFIX_BYTES])
    starts = range(npy.PREFIX_BYTES + header_bytes, entry.plain_bytes, NUMPY_READ_BYTES)
    requests = [npy.PREFIX_BYTES, header_bytes, *(min(NUMPY_READ_BYTES, entry.plain_bytes - start) for start in starts)]
    unread_bytes = len(stored)
    ratio = entry.plain_bytes / max(1, len(stored))
    packed_buffered = plain_buffered = 0.0  # bytes read but not decompressed; bytes decompressed but not requested
    for request_bytes in requests:
        missing = request_bytes - plain_buffered
        plain_buffered = max(0.0, -missing)
        while missing > 0 and (unread_bytes or packed_buffered >= 1):
            if unread_bytes and missing > packed_buffered:
                read_bytes = min(max(round(missing - packed_buffered), ZIPFILE_MIN_READ_BYTES), unread_bytes)
                file.read(read_bytes)
                unread_bytes -= read_bytes
                packed_buffered += read_bytes
            plain_bytes = min(packed_buffered * ratio, max(missing, ZIPFILE_MIN_READ_BYTES))
            packed_buffered -= plain_bytes / ratio
            plain_buffered = max(0.0, plain_bytes - missing)
            missing -= plain_bytes
    file.read(unread_bytes)
