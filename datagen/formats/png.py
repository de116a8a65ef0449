"""PNG: one image per file, grey or colour, 8 bits per channel.

Pixels come from the content, with as many levels as fit the requested file size. The deflate data is one block whose
Huffman codes all have b bits: one code is the end of the block, the others are 2^b - 1 levels. A private chunk of
content pads the file to its size. No compressor is used, so that the bytes are the same everywhere; decoders do their
usual work. Formats: PNG (W3C, third edition), RFC 1950 (zlib), RFC 1951 (deflate).
"""

from __future__ import annotations

import functools
import struct

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from datagen.buffers import round_up
from datagen.content import Content
from datagen.formats import _picture as picture
from datagen.formats._picture import PictureFormat, Shape
from datagen.formats._source import BufferedFile
from datagen.formats.format_base import DamagedError

HAS_OWN_LENGTH = True
SIGNATURE = b"\x89PNG\r\n\x1a\n"
PADDING = b"dlEm"  # type of the padding chunk; lower case: ancillary (1st letter), private (2nd), safe to copy (4th)
CHUNK_BYTES = 12  # size of a chunk's length, type and CRC
HEADER_BYTES = 13  # data of the IHDR chunk
ADLER32_BYTES = 4  # checksum at the end of zlib data
ZLIB_HEADER = b"\x78\x01"
LITERALS = 256  # deflate's codes of single bytes (RFC 1951, 3.2.5)
END_OF_BLOCK = 256  # RFC 1951, 3.2.5
# The order in which deflate stores the lengths of the codes for code lengths (RFC 1951, 3.2.7)
LENGTH_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
MAX_BITS = 8  # of a code: 255 levels and the end of the block use all 256 codes of 8 bits


class Format(PictureFormat):
    def min_bytes(self, shape: Shape) -> int:
        return _bytes_needed(shape, 1)

    def encode(self, content: Content, file: int, shape: Shape, size_bytes: int) -> bytes:
        bits = max(bits for bits in range(1, MAX_BITS + 1) if _bytes_needed(shape, bits) <= size_bytes)
        padding_bytes = picture.MIN_PADDING_BYTES + size_bytes - _bytes_needed(shape, bits)
        padding, codes = picture.padding_and_codes(content, file, padding_bytes, shape.size_bytes)
        header = struct.pack(">LLBBBBB", shape.width, shape.height, 8, 0 if shape.channels == 1 else 2, 0, 0, 0)
        parts = [
            SIGNATURE,
            *_chunk(b"IHDR", header),
            *_chunk(PADDING, padding.data),
            *_chunk(b"IDAT", _zlib_data(codes.reshape(shape.height, -1), bits)),
            *_chunk(b"IEND", b""),
        ]
        return b"".join(parts)

    def check(self, data: memoryview) -> None:
        if data[: len(SIGNATURE)] != SIGNATURE:
            raise DamagedError("no PNG signature")
        if bytes(data[-8:-4]) != b"IEND":
            raise DamagedError("a PNG file without its end chunk", len(data))

    def read_by_pillow(self, file: BufferedFile) -> None:
        if bytes(file.read(len(SIGNATURE))) != SIGNATURE:
            raise DamagedError("no PNG signature")
        while True:
            size, name = struct.unpack(">L4s", file.read(8))
            picture.read_in_blocks(file, size, picture.PILLOW_BYTES if name == b"IDAT" else picture.SAFE_BYTES)
            file.read(4)
            if name == b"IEND":
                return


def _bytes_needed(shape: Shape, bits: int) -> int:
    """Return the size of a file with codes of `bits` bits and the minimum padding."""
    codes = shape.height * (1 + shape.width * shape.channels) + 1
    zlib_bytes = len(ZLIB_HEADER) + len(_block_header(bits)) + (codes * bits + 7) // 8 + ADLER32_BYTES
    return len(SIGNATURE) + 4 * CHUNK_BYTES + HEADER_BYTES + picture.MIN_PADDING_BYTES + zlib_bytes


def _levels(bits: int) -> NDArray[np.uint8]:
    """Return the pixel values for codes of `bits` bits, evenly spread from 0, which is also each row's filter type."""
    count = (1 << bits) - 1
    return (np.arange(count) * 255 // max(1, count - 1)).astype(np.uint8)


@functools.cache
def _block_header(bits: int) -> bytes:
    """Return the header of a final block with dynamic codes, all of `bits` bits: the levels, and the end of the block.

    Unused symbols (code length 0) are added so that the header ends on a byte boundary.
    """
    symbols = {*_levels(bits).tolist(), END_OF_BLOCK}
    lengths = LENGTH_ORDER[: LENGTH_ORDER.index(bits) + 1]
    header_bits = 1 + 2 + 5 + 5 + 4 + 3 * len(lengths) + (LITERALS + 1) + 1  # of `fields` with unused = 0
    unused = -header_bits % 8
    fields = [(1, 1), (2, 2), (unused, 5), (0, 5), (len(lengths) - 4, 4)]  # (value, bits), RFC 1951, 3.2.7
    # The lengths 0 and `bits` have the codes 0 and 1, of one bit
    fields += [(int(length in (0, bits)), 3) for length in lengths]
    fields += [(int(symbol in symbols), 1) for symbol in range(LITERALS + 1 + unused)]
    fields += [(0, 1)]  # one distance code, of length 0: no distances are used
    field_bits = [value >> bit & 1 for value, width in fields for bit in range(width)]
    return np.packbits(np.array(field_bits, np.uint8), bitorder="little").tobytes()


def _zlib_data(codes: NDArray[np.uint8], bits: int) -> bytes:
    """Return the zlib data of an image; a pixel's code is the low `bits` of one of `codes` (height, bytes per row)."""
    end = (1 << bits) - 1  # the code for the end of the block
    height, row_bytes = codes.shape
    num_codes = height * (row_bytes + 1)
    stream = np.zeros(round_up(num_codes + 1, 8), np.uint8)
    rows = stream[:num_codes].reshape(height, row_bytes + 1)  # each row begins with its filter type, 0: none
    np.bitwise_and(codes, end, out=rows[:, 1:])
    np.bitwise_xor(stream, 1, out=stream, where=stream == end)  # no pixel may have the code `end`
    pixel_of_code = np.zeros(1 << bits, np.uint8)
    for code, level in enumerate(_levels(bits)):
        reversed_code = int(format(code, f"0{bits}b")[::-1], 2)  # Huffman codes are stored with the first bit lowest
        pixel_of_code[reversed_code] = level
    checksum = isal_zlib.adler32(pixel_of_code[stream[:num_codes]])
    stream[num_codes] = end
    words = np.zeros(len(stream) // 8, "<u8")  # eight codes fill `bits` bytes, the first code lowest
    for position in range(8):
        words |= stream[position::8].astype(np.uint64) << np.uint64(position * bits)
    data = words.view(np.uint8).reshape(-1, 8)[:, :bits].tobytes()
    data_bytes = ((num_codes + 1) * bits + 7) // 8  # without the codes that fill up the last word
    return ZLIB_HEADER + _block_header(bits) + data[:data_bytes] + struct.pack(">L", checksum)


def _chunk(name: bytes, data: bytes | memoryview) -> tuple[bytes, bytes | memoryview, bytes]:
    checksum = isal_zlib.crc32(data, isal_zlib.crc32(name))
    return struct.pack(">L", len(data)) + name, data, struct.pack(">L", checksum)
