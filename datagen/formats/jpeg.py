"""JPEG: one image per file, grey or colour, whose entropy-coded bytes are the dataset's content.

The images are baseline JPEG (ITU-T T.81) with Huffman tables chosen so that each coefficient is exactly one byte:

    bits of the byte       meaning
    0vvvvvvv               a coefficient of 7 bits, `v`
    10vvvvvv               a coefficient of 6 bits, and so on
    1111110v               a coefficient of 1 bit
    11111110               the end of the block; as a DC code: no difference

No code is 11111111, so no byte needs escaping. Every byte below 11111110 is a coefficient, so content can be used as
image data. Decoding takes as much work as for any image of this size; the pixels are noise, as in DLIO's images.
Comment segments hold the content that does not fit into the blocks, so that the file has exactly the requested size.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from datagen.content import Content
from datagen.formats import _picture as picture
from datagen.formats._picture import PictureFormat, Shape
from datagen.formats._source import BufferedFile
from datagen.formats.format_base import DamagedError, Scratch
from datagen.registry import library

ENDINGS = ("jpeg", "jpg")
HAS_OWN_LENGTH = True
# Markers (ITU-T T.81, table B.1): start and end of the image, comment, and the segments of `_headers`
SOI, EOI, COM = b"\xff\xd8", b"\xff\xd9", b"\xff\xfe"
DQT, SOF0, DHT, SOS = b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda"
JFIF = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a segment: TEM, and restart markers
COMMENT_HEAD_BYTES = 4  # marker and length
SEGMENT_BYTES = 65533  # maximum bytes of a comment: a segment's length has 16 bits and includes its own 2 bytes
MAX_COEFFICIENTS = 63  # AC coefficients of a block of 8 x 8
# Bits of the coefficient after the Huffman codes of 1 to 8 bits; 0: none follows the code of 8 bits
COEFFICIENT_BITS = bytes([7, 6, 5, 4, 3, 2, 1, 0])
END_OF_BLOCK = 0xFE  # the code of 8 bits, in the table for AC coefficients
NO_DIFFERENCE = 0xFE  # the same code in the table for DC differences


class Format(PictureFormat):
    longest_side = 65535

    def min_bytes(self, shape: Shape) -> int:
        return _fixed_bytes(shape) + 2 * _blocks(shape)

    def encode(self, content: Content, file: int, shape: Shape, size_bytes: int) -> bytes:
        blocks = _blocks(shape)
        block_bytes = min((size_bytes - _fixed_bytes(shape)) // blocks, MAX_COEFFICIENTS + 1)
        spare_bytes = size_bytes - _fixed_bytes(shape) - block_bytes * blocks
        comment_bytes = COMMENT_HEAD_BYTES + picture.MIN_PADDING_BYTES + spare_bytes
        num_comments = -(-comment_bytes // (COMMENT_HEAD_BYTES + SEGMENT_BYTES))  # rounded up
        coefficients = MAX_COEFFICIENTS if block_bytes > MAX_COEFFICIENTS else block_bytes - 2
        padding_bytes = comment_bytes - COMMENT_HEAD_BYTES * num_comments
        padding, codes = picture.padding_and_codes(content, file, padding_bytes, blocks * coefficients)
        parts = np.array_split(padding, num_comments)
        comments = [COM + struct.pack(">H", len(part) + 2) + part.tobytes() for part in parts]
        # Each row is a block: no DC difference, the coefficients and, if these are fewer than 63, an end of block
        scan = np.empty((blocks, block_bytes), np.uint8)
        scan[:, 0] = NO_DIFFERENCE
        scan[:, coefficients + 1 :] = END_OF_BLOCK
        np.bitwise_and(codes, 0x7F, out=codes, where=codes >= END_OF_BLOCK)  # FE and FF become 7E and 7F
        scan[:, 1 : coefficients + 1] = codes.reshape(blocks, coefficients)
        return b"".join([SOI + JFIF, *comments, _headers(shape), scan.data, EOI])

    def check(self, data: memoryview) -> None:
        if data[:2] != SOI:
            raise DamagedError("no JPEG start")
        if data[-2:] != EOI:
            raise DamagedError("JPEG data that does not end with its end marker", len(data))

    def read_by_pillow(self, file: BufferedFile) -> None:
        if bytes(file.read(3)[:2]) != SOI:
            raise DamagedError("no JPEG start")
        marker = 0xFF  # the last two bytes read, as in Pillow's JpegImagePlugin.py; 0xFF alone begins a marker
        while True:
            (byte,) = struct.unpack("B", file.read(1))
            marker = ((marker & 0xFF) << 8) | byte
            if marker in (0xFFFF, 0xFF00):
                marker = 0xFF
            elif marker & 0xFF == SOS[1]:
                break
            elif marker >= 0xFF00 and marker & 0xFF not in STANDALONE:
                (size,) = struct.unpack(">H", file.read(2))
                picture.read_in_blocks(file, size - 2, picture.SAFE_BYTES)
        file.seek(0)
        picture.feed_decoder(file, file.size_bytes)

    def decode(self, data: memoryview, scratch: Scratch) -> memoryview:
        simplejpeg = library("simplejpeg", "image")  # takes a fifth of Pillow's time for small images
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        picture.check_pixels(height, width)
        shape = Shape(height, width, 1 if colours == "Gray" else 3)
        colour_space, out = "GRAY" if shape.channels == 1 else "RGB", scratch(shape.size_bytes)
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colour_space, buffer=out)
        return pixels.reshape(-1).data


def _blocks(shape: Shape) -> int:
    """Return the number of blocks of 8 x 8 values: for colour, 4 of luma and 2 of chroma per 16 x 16 pixels (4:2:0)."""
    if shape.channels == 1:
        return ((shape.height + 7) // 8) * ((shape.width + 7) // 8)
    return 6 * ((shape.height + 15) // 16) * ((shape.width + 15) // 16)


def _fixed_bytes(shape: Shape) -> int:
    """Return the size of a file without its blocks, but with the minimum padding in a comment."""
    return len(SOI + JFIF + EOI) + COMMENT_HEAD_BYTES + picture.MIN_PADDING_BYTES + len(_headers(shape))


def _headers(shape: Shape) -> bytes:
    """Return the segments between the comments and the blocks: tables, frame header and scan header."""
    quantization = DQT + b"\x00\x43\x00" + b"\x01" * 64  # 67 bytes: table 0, whose 64 divisors are 1
    count = shape.channels
    sampling = [0x11] if count == 1 else [0x22, 0x11, 0x11]  # 2 x 2 blocks of luma for each block of chroma
    components = b"".join(bytes([i + 1, sampling[i], 0]) for i in range(count))
    frame = SOF0 + struct.pack(">HBHHB", 8 + 3 * count, 8, shape.height, shape.width, count) + components
    codes = bytes([1] * 8 + [0] * 8) + COEFFICIENT_BITS  # one code of each length from 1 to 8
    huffman = b"".join(DHT + struct.pack(">HB", 3 + len(codes), kind) + codes for kind in (0x00, 0x10))  # DC, AC
    scan = SOS + struct.pack(">HB", 6 + 2 * count, count) + b"".join(bytes([i + 1, 0]) for i in range(count))
    scan += b"\x00\x3f\x00"  # coefficients 0 to 63, at full precision
    return quantization + frame + huffman + scan
