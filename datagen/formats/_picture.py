"""The base of the image formats: a file is one image, and has exactly the requested size whatever the image's shape.

The bytes of a file are a pure function of (content, running index, shape, size), so that they can be generated again
for comparison. dlemu itself encodes the images, because the next version of a library might write other bytes.
"""

from __future__ import annotations

import abc
import struct
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import NewMemory, round_up
from datagen.content import STAMP_BYTES, Content
from datagen.formats import format_base as base
from datagen.formats._source import BufferedFile
from datagen.registry import library
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import Writer

MIN_PADDING_BYTES = STAMP_BYTES  # the first bytes of content are stored unchanged: a stamp that identifies the file
CHANNELS = (1, 3)  # numbers of channels: grey, or red, green and blue
MAX_PIXELS = 1_000_000_000  # 3 GB decoded; a header that states more is damaged, or an attack on the memory
PILLOW_BYTES = 64 << 10  # bytes that Pillow passes to a decoder at a time (`MAXBLOCK` in PIL/ImageFile.py)
SAFE_BYTES = 1 << 20  # maximum size of Pillow's reads of other data (`SAFEBLOCK` in PIL/ImageFile.py)
ByteArray = NDArray[np.uint8]


def read_in_blocks(file: BufferedFile, size_bytes: int, block_bytes: int) -> None:
    """Read `size_bytes` as Pillow's `_safe_read` does: a block at a time, to the end of the file at most."""
    for offset in range(0, size_bytes, block_bytes):
        if not file.read(min(block_bytes, size_bytes - offset)):
            return


def feed_decoder(file: BufferedFile, end: int) -> None:
    """Read as Pillow does to feed a decoder that stops at offset `end` of the file, the end of the image."""
    while file.position < end and file.read(PILLOW_BYTES):
        continue


class Shape(NamedTuple):
    """The shape of an image, in pixels."""

    height: int
    width: int
    channels: int = 1

    @property
    def size_bytes(self) -> int:
        return self.height * self.width * self.channels


class PictureFormat(base.FormatBase):
    one_sample = only_bytes = compares_files = True
    transfer_bytes = 128 << 10  # Linux's default read-ahead, into which it turns Pillow's reads of 64 KiB
    longest_side: ClassVar[int] = 1 << 30  # maximum pixels per side; by default more than `record_dims` can have

    @abc.abstractmethod
    def min_bytes(self, shape: Shape) -> int:
        """Return the size of the smallest file of an image of this shape, with the minimum padding."""

    @abc.abstractmethod
    def encode(self, content: Content, file: int, shape: Shape, size_bytes: int) -> bytes:
        """Return a file of `size_bytes` bytes, which are at least `min_bytes(shape)`."""

    @abc.abstractmethod
    def check(self, data: memoryview) -> None:
        """Raise DamagedError unless a file begins and ends like one of this format."""

    @abc.abstractmethod
    def read_by_pillow(self, file: BufferedFile) -> None:
        """Read an identified file by the calls of Pillow's plugin. Raises struct.error, KeyError, DamagedError."""

    def decode(self, data: memoryview, scratch: base.Scratch) -> memoryview:
        """Return the pixels, in memory of `scratch` if the decoder can use it. Raises the decoder's exceptions."""
        return pillow_pixels(data)

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = super().unfit(spec)
        if problems or spec.source == "folder":
            return problems
        dims = spec.record_dims or (max(1, int(spec.record_length_bytes**0.5)),) * 2
        if len(dims) not in (2, 3) or (len(dims) == 3 and dims[2] not in CHANNELS):
            return [f"dataset.record_dims is {list(dims)}: wanted height and width, and 1 or 3 channels if any"]
        pixels = " x ".join(map(str, dims))
        if max(dims) > self.longest_side:
            return [f"an image of {pixels} pixels: {spec.format} has at most {self.longest_side} per side"]
        min_bytes = self.min_bytes(Shape(*dims))
        if not spec.sizes_vary and spec.record_length_bytes < min_bytes:
            wanted = f"a {spec.format} file of {pixels} pixels has {min_bytes} bytes or more"
            return [f"dataset.record_length_bytes is {spec.record_length_bytes:g}: {wanted}"]
        return []

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        if not spec.sizes_vary:
            return np.full(len(shapes), int(spec.record_length_bytes), np.int64)
        # Random shapes have a pixel for each byte of a sample, and a file of this format may need more bytes than that
        min_bytes = (self.min_bytes(Shape(*shape)) for shape in shapes.tolist())
        sizes: base.Sizes = np.maximum(shapes.prod(axis=1), np.fromiter(min_bytes, np.int64, len(shapes)))
        return sizes

    def write(self, job: base.FileJob, writer: Writer, buffer: object) -> None:
        (size_bytes,) = self.file_bytes(job.spec, np.array([job.shape], np.int64)).tolist()
        writer.write(self.encode(job.content, job.running_index, Shape(*job.shape), size_bytes))

    def read_matched(self, file: BufferedFile, samples: int) -> None:
        """Read as Pillow does from an open file (torchvision's `pil_loader`), undecoded."""
        file.read(16)  # Image.open identifies the format
        file.seek(0)
        try:
            self.read_by_pillow(file)
        except (struct.error, KeyError, base.DamagedError):  # not this format, or damaged: `check` will report it
            file.read_rest()

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> base.OneSample:
        """Return the open file. A user's own file that is not of this format is left to Pillow to decode."""
        decode = partial(self.decode, data, scratch)
        try:
            self.check(data)
        except base.DamagedError:
            if not self.own_files:
                raise
            decode = partial(pillow_pixels, data)

        def rebuild(content: Content, file: int) -> memoryview:
            image = pillow_image(data)
            shape = Shape(image.height, image.width, len(image.getbands()))
            if shape.channels not in CHANNELS or len(data) < self.min_bytes(shape):
                return memoryview(b"")  # dlemu did not write such a file
            return memoryview(self.encode(content, file, shape, len(data)))

        return base.OneSample(base.Sample(data, data, 0, decode, rebuild))

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        sample = super().load(path, index, samples)
        return sample._replace(decode=partial(pillow_pixels, sample.data))  # as most scripts do


def pillow_pixels(data: memoryview) -> memoryview:
    """Return the pixels, decoded by Pillow. Raises OSError, ValueError, SyntaxError; UserError without Pillow."""
    pixels: ByteArray = np.ascontiguousarray(pillow_image(data))
    return pixels.reshape(-1).data


def pillow_image(data: memoryview) -> Any:
    """Open an image by Pillow without decoding it. Raises like `pillow_pixels`, ValueError for too many pixels."""
    pillow = library("PIL.Image", "image")
    # Pillow's limits, a warning at 89 million pixels and an error at twice as many, are too low for scanned slides
    pillow.MAX_IMAGE_PIXELS = None
    image = pillow.open(base.SourceStream(base.MemorySource(data, NewMemory(1).scratch)))  # BytesIO would copy
    check_pixels(image.height, image.width)
    return image


def check_pixels(height: int, width: int) -> None:
    """Raise ValueError for more than MAX_PIXELS; called before memory is allocated for the pixels."""
    if height * width > MAX_PIXELS:
        raise ValueError(f"{width:,} x {height:,} pixels are more than the {MAX_PIXELS:,} allowed in an image")


def padding_and_codes(content: Content, file: int, padding_bytes: int, num_codes: int) -> tuple[ByteArray, ByteArray]:
    """Return the first `padding_bytes` of a file's content, and `num_codes` bytes of it from the next block on."""
    padding = np.empty(padding_bytes, np.uint8)
    codes = np.empty(num_codes, np.uint8)
    content.fill(padding, file, 0)
    content.fill(codes, file, round_up(padding_bytes, BLOCK_BYTES))  # filling whole blocks is fastest
    return padding, codes
