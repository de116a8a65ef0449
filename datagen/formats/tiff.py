"""TIFF: one image per file, grey or colour, 8 bits per channel, uncompressed, in one strip.

The pixels are the content; between the directory and the strip, padding that readers skip gives the file its size.
Decoding is copying, as for most large scans. Format: TIFF 6.0, sections 2 (structure) and 8 (tags).
"""

from __future__ import annotations

import struct

from datagen.content import Content
from datagen.formats._picture import MIN_PADDING_BYTES, PictureFormat, Shape, feed_decoder, padding_and_codes
from datagen.formats._source import BufferedFile
from datagen.formats.format_base import DamagedError

ENDINGS = ("tiff", "tif")
HAS_OWN_LENGTH = True
_HEADER = struct.Struct("<2sHL")  # byte order, 42, and the offset of the directory
_ENTRY = struct.Struct("<HHLL")  # tag, type, count, and the value or its offset
_SHORT, _LONG = 3, 4  # field types of TIFF 6.0; below, its tags
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _CHANNELS, _ROWS, _STRIP_BYTES = 273, 277, 278, 279
_TAGS = 9
_NO_COMPRESSION = 1
_BIT_VALUES_BYTES = 6  # after the directory: bits per sample of three channels, 16 bits each
_FIXED_BYTES = _HEADER.size + 2 + _TAGS * _ENTRY.size + 4 + _BIT_VALUES_BYTES
_ORDERS = {b"II": "<", b"MM": ">"}  # byte orders


class Format(PictureFormat):
    def min_bytes(self, shape: Shape) -> int:
        return _FIXED_BYTES + MIN_PADDING_BYTES + shape.size_bytes

    def encode(self, content: Content, file: int, shape: Shape, size_bytes: int) -> bytes:
        strip_start = size_bytes - shape.size_bytes
        colour = shape.channels > 1
        entries = (
            (_WIDTH, _LONG, 1, shape.width),
            (_HEIGHT, _LONG, 1, shape.height),
            (_BITS, _SHORT, 3, _FIXED_BYTES - _BIT_VALUES_BYTES) if colour else (_BITS, _SHORT, 1, 8),
            (_COMPRESSION, _SHORT, 1, _NO_COMPRESSION),
            (_PHOTOMETRIC, _SHORT, 1, 2 if colour else 1),
            (_STRIP_OFFSETS, _LONG, 1, strip_start),
            (_CHANNELS, _SHORT, 1, shape.channels),
            (_ROWS, _LONG, 1, shape.height),
            (_STRIP_BYTES, _LONG, 1, shape.size_bytes),
        )
        directory = b"".join(_ENTRY.pack(*entry) for entry in entries)
        head = _HEADER.pack(b"II", 42, _HEADER.size) + struct.pack("<H", _TAGS) + directory + bytes(4)
        bits = struct.pack("<3H", 8, 8, 8)
        padding, pixels = padding_and_codes(content, file, strip_start - _FIXED_BYTES, shape.size_bytes)
        return b"".join([head, bits, padding.data, pixels.data])

    def check(self, data: memoryview) -> None:
        try:
            tags = _tags(data)
            end = tags.get(_STRIP_OFFSETS, 0) + tags.get(_STRIP_BYTES, 0)  # 0: several strips, left to the decoder
        except struct.error as error:
            raise DamagedError(f"no readable TIFF structure ({error})", 0) from error
        if end > len(data):
            raise DamagedError(f"a TIFF strip that ends at {end}, beyond the end of the file", len(data))

    def read_by_pillow(self, file: BufferedFile) -> None:
        order = _ORDERS.get(bytes(file.read(2)), "<")
        (directory,) = struct.unpack(f"{order}L", file.read(6)[2:])
        _read_directory(file, directory, order)  # TiffImageFile._seek(0) finds the first image,
        _read_directory(file, directory, order)  # and then loads its tags
        tags = _tags(file.image)
        file.seek(tags[_STRIP_OFFSETS])
        feed_decoder(file, tags[_STRIP_OFFSETS] + tags[_STRIP_BYTES])
        _read_directory(file, directory, order)  # TiffImageFile.load_end calls getexif


def _read_directory(file: BufferedFile, offset: int, order: str) -> None:
    """Read as Pillow does: seek to the end of the file, then read the directory and the values stored outside of it."""
    file.seek_from_end()
    file.seek(offset)
    (count,) = struct.unpack(f"{order}H", file.read(2))
    for _ in range(count):
        _, field_type, num_values, values_offset = struct.unpack(f"{order}HHLL", file.read(_ENTRY.size))
        if field_type == _SHORT and num_values > 2:
            next_entry = file.position
            file.seek(values_offset)
            file.read(2 * num_values)
            file.seek(next_entry)
    file.read(4)


def _tags(data: memoryview) -> dict[int, int]:
    """Return the values of the tags in the first directory that have a single integer value."""
    order = _ORDERS.get(bytes(data[:2]))
    if order is None:
        raise DamagedError("no TIFF start")
    magic, directory = struct.unpack_from(f"{order}HL", data, 2)
    if magic != 42:
        raise DamagedError("no TIFF start", 2)
    (count,) = struct.unpack_from(f"{order}H", data, directory)
    tags = {}
    for entry in range(count):
        offset = directory + 2 + entry * _ENTRY.size
        tag, field_type, num_values = struct.unpack_from(f"{order}HHL", data, offset)
        if num_values == 1 and field_type in (_SHORT, _LONG):
            (tags[tag],) = struct.unpack_from(f"{order}{'H' if field_type == _SHORT else 'L'}", data, offset + 8)
    return tags
