"""What all formats of pictures share: one picture a file, of the file's stated size, whatever the picture's shape.

The bytes of a file are a pure function of (content, running index, shape, size), so they can be made again to compare
with: no library encodes them, whose next version might do it in another way.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from datagen.content import STAMP_BYTES, Content
from datagen.errors import DlemuError
from datagen.extras import library
from datagen.formats._buffered import BufferedFile
from datagen.formats.format_base import CallSource, FileJob, LibraryReads, Sample, Source, damaged
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

LIBRARY = LibraryReads(call="Pillow", transfer_bytes=128 << 10)
"""Pillow reads 64 KiB at a time, of which Linux makes requests of 128 KiB to a device (its usual read-ahead)."""
LEAST_PADDING_BYTES = STAMP_BYTES
"""Each file begins with so much of its content as it is, so that it shows whose it is."""
CHANNELS = (1, 3)
"""Grey, and red, green and blue."""
MOST_PIXELS = 1_000_000_000
"""Of one picture: 3 GB once it is decoded. A header that states more is damaged, or made to fill the memory."""

PILLOW_BYTES = 64 << 10
"""What a decoder is fed at a time (`MAXBLOCK` in PIL/ImageFile.py)."""
_SAFE_BYTES = 1 << 20
"""What all else is read by (`SAFEBLOCK` there)."""


def read_in_blocks(file: BufferedFile, size_bytes: int, block_bytes: int = _SAFE_BYTES) -> None:
    """Read so many bytes as Pillow's `_safe_read` does: in blocks where there are many."""
    for at in range(0, size_bytes, block_bytes):
        if not file.read(min(block_bytes, size_bytes - at)):
            return


def feed_decoder(file: BufferedFile, end: int) -> None:
    """Read as a decoder is fed that is done at `end`: it does not know before how much is left."""
    while file.position < end and file.read(PILLOW_BYTES):
        continue


class Shape(NamedTuple):
    """The shape of a picture, in pixels."""

    height: int
    width: int
    channels: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its pixels."""
        return self.height * self.width * self.channels


class PictureError(Exception):
    """What is wrong with a picture's file, and where; its path is added by who knows it."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


class Codec(Protocol):
    """One kind of picture."""

    name: str
    longest_side: int

    def smallest(self, shape: Shape) -> int:
        """Return the bytes of the smallest file that holds a picture of a shape, and the least padding."""
        ...

    def make(self, content: Content, file: int, shape: Shape, size_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes of a file of this size, at least the smallest."""
        ...

    def look(self, data: memoryview) -> Shape:
        """Return the shape of a picture whose file is whole, from its marks alone.

        Raises:
            PictureError: the file is truncated or none of this kind.
        """
        ...

    def read_by_pillow(self, file: BufferedFile) -> None:
        """Read the file by the calls of Pillow's plugin.

        Raises:
            struct.error, KeyError, PictureError: it ends within its structure, or is none of this kind.
        """
        ...

    def decode(self, data: memoryview, shape: Shape, scratch: memoryview) -> memoryview:
        """Return a picture's pixels, in `scratch` (which is theirs) if the library can. Raises as the library does."""
        ...


@dataclass(frozen=True)
class PictureFormat:
    """Reads and writes pictures of one kind."""

    codec: Codec

    def unfit(self, spec: DatasetSpec) -> list[str]:
        name = self.codec.name
        problems = []
        if spec.compression != "none":
            problems.append(f"dataset.compression is {spec.compression}: format {name} supports only none")
        if spec.num_samples_per_file != 1:
            samples = spec.num_samples_per_file
            problems.append(f"dataset.num_samples_per_file is {samples}: a {name} file holds one image: set it to 1")
        if spec.record_element_type != "uint8":
            problems.append(f"dataset.record_element_type is {spec.record_element_type}: pixels of {name} are uint8")
        return problems or self._unfit_shape(spec)

    def _unfit_shape(self, spec: DatasetSpec) -> list[str]:
        dims = spec.record_dims or (max(1, int(spec.record_length_bytes**0.5)),) * 2
        if len(dims) not in (2, 3) or dims[2:] not in ((), *((count,) for count in CHANNELS)):
            return [f"dataset.record_dims is {list(dims)}: wanted height and width, and 1 or 3 channels if any"]
        if max(dims) > self.codec.longest_side:
            return [
                f"an image of {_words(dims)} pixels: {self.codec.name} has at most {self.codec.longest_side} per side"
            ]
        least = self.codec.smallest(_shape(dims))
        if not spec.sizes_vary and spec.record_length_bytes < least:
            return [
                f"dataset.record_length_bytes is {spec.record_length_bytes:g}: a {self.codec.name} file of "
                f"{_words(dims)} pixels has {least} bytes or more"
            ]
        return []

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if not spec.sizes_vary:
            return np.full(len(shapes), int(spec.record_length_bytes), np.int64)
        # Shapes that are drawn are of one byte a pixel, and may be too small for any file.
        least = (self.codec.smallest(_shape(tuple(shape))) for shape in shapes.tolist())
        sizes: NDArray[np.int64] = np.maximum(shapes.prod(axis=1), np.fromiter(least, np.int64, len(shapes)))
        return sizes

    def write(self, job: FileJob, writer: Writer, buffer: object) -> None:
        sizes = self.file_bytes(job.spec, np.array([job.shape], np.int64))
        assert sizes is not None
        writer.write(self.codec.make(job.content, job.running_index, _shape(job.shape), int(sizes[0])).data)

    def open(self, source: Source, samples: int) -> PictureFile:
        """Read the file whole, by one call."""
        return PictureFile(self.codec, source.path, source.read(0, source.size_bytes), source.scratch)

    def open_called(self, source: CallSource, samples: int) -> PictureFile:
        """Read as Pillow does from an open file (torchvision's `pil_loader`), undecoded."""
        file = BufferedFile(source)
        with contextlib.suppress(struct.error, KeyError, PictureError):  # the look at it will tell
            self.codec.read_by_pillow(file)
        file.blank_rest()
        return PictureFile(self.codec, source.path, file.image, source.scratch, file.read_rest)

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read the file whole; Pillow decodes it, as it does in most scripts."""
        with open(path, "rb") as file:
            return self._loaded(path, memoryview(file.read()))

    def load_stream(self, file: LibraryFile, index: int, samples: int) -> Sample:
        return self._loaded(file.name, memoryview(file.readall()))

    def _loaded(self, path: str, data: memoryview) -> Sample:
        opened = PictureFile(self.codec, path, data, lambda size: memoryview(bytearray(size)))
        return opened.sample(0)._replace(decode=lambda: opened.guarded(lambda: pillow_pixels(data)))


class PictureFile:
    """One picture, whose file is in memory."""

    def __init__(
        self,
        codec: Codec,
        path: str,
        data: memoryview,
        scratch: Callable[[int], memoryview],
        read_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._codec = codec
        self._path = path
        self._data = data
        self._scratch = scratch
        self._read_rest = read_rest
        try:
            self._shape = codec.look(data)
        except PictureError as error:
            raise damaged(path, str(error), error.offset) from error

    def sample(self, index: int) -> Sample:
        return Sample(self._data, self._data, 0, decode=self._decode, rebuild=self._rebuild)

    def guarded(self, decode: Callable[[], memoryview]) -> memoryview:
        """Decode; what a library has against a picture is reported as damage of its file."""
        try:
            return decode()
        except DlemuError:
            raise
        except (OSError, ValueError, SyntaxError, RuntimeError) as error:
            raise damaged(self._path, f"an image that can't be decoded ({error})", 0) from error

    def _decode(self) -> memoryview:
        shape = self._shape
        return self.guarded(lambda: self._codec.decode(self._data, shape, self._scratch(shape.size_bytes)))

    def _rebuild(self, content: Content, file: int) -> memoryview:
        if len(self._data) < self._codec.smallest(self._shape):
            return memoryview(b"")  # no file of ours, which are never that small
        self._read_rest()  # padding that no reader looks at
        return self._codec.make(content, file, self._shape, len(self._data)).data


def pillow_pixels(data: memoryview) -> memoryview:
    """Decode by Pillow. Raises OSError, ValueError, SyntaxError; UserError where it is not installed."""
    pixels: NDArray[np.uint8] = np.ascontiguousarray(pillow_image(data))
    return pixels.reshape(-1).data


def pillow_image(data: memoryview) -> Any:
    """Open a picture by Pillow, which decodes it later. Raises as `pillow_pixels`; ValueError for too many pixels."""
    pillow = library("PIL.Image", "image")
    # Pillow warns above 89 million pixels and refuses twice as many: fewer than a scan on one slide has.
    pillow.MAX_IMAGE_PIXELS = None
    image = pillow.open(io.BytesIO(data))
    check_pixels(image.height, image.width)
    return image


def check_pixels(height: int, width: int) -> None:
    """Raise ValueError for more pixels than a picture has, before anything makes room for them."""
    if height * width > MOST_PIXELS:
        raise ValueError(f"{width:,} x {height:,} pixels are more than the {MOST_PIXELS:,} allowed in an image")


def padding_then_codes(
    content: Content, file: int, padding: memoryview | NDArray[np.uint8], count: int
) -> NDArray[np.uint8]:
    """Fill `padding` with the first bytes of a file's content, and return `count` of those after them.

    They begin at the next block, for whole blocks are made fastest.
    """
    content.fill(padding, file, 0)
    codes = np.empty(count, np.uint8)
    content.fill(codes, file, -(-len(padding) // BLOCK_BYTES) * BLOCK_BYTES)
    return codes


def _shape(dims: tuple[int, ...]) -> Shape:
    return Shape(dims[0], dims[1], dims[2] if len(dims) > 2 else 1)


def _words(dims: tuple[int, ...]) -> str:
    return " x ".join(map(str, dims))
