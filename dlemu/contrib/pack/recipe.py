"""Prepares one image for a packed file: decodes, resizes and encodes it again, with Pillow and simplejpeg."""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datagen.formats import _array
from datagen.formats._picture import check_pixels, pillow_image
from datagen.formats.format_base import DamagedError as ArrayDamagedError
from datagen.formats.format_base import PackedSample
from datagen.registry import library
from dlemu.extend import DlemuError, UserError

Kind = Literal["jpeg", "png", "tiff", "npy", "file"]
Encoding = Literal["keep", "raw", "jpeg", "png"]

KINDS: dict[str, Kind] = {
    ".jpeg": "jpeg",
    ".jpg": "jpeg",
    ".png": "png",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".npy": "npy",
}
"""File name extension in lower case -> content. Files with any other extension are `file`: bytes never decoded."""
_PLAIN_MODES = ("L", "RGB")
"""Pillow's modes for 8-bit grey and RGB: packed as they are. 16-bit grey becomes 8-bit; others, if not 32-bit, RGB."""
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_REDUCING_GAP = 2.0
"""Pillow first shrinks by a whole factor, to no less than this many times the final size: nearly the same picture in
a fraction of the time (`reducing_gap` of Image.resize; Image.thumbnail has the same value)."""
_PNG_LEVEL = 1  # zlib's fastest: higher levels take several times the CPU for slightly smaller files
_NPY_ERRORS = (ArrayDamagedError, struct.error)
"""Exceptions for a damaged .npy file, besides Python's usual ones."""


class DamagedError(Exception):
    """An image that can't be decoded; the message has the reason without the path, which the caller knows."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How images are resized and encoded."""

    height: int = 0
    """Pixels. Either height and width are set, or `shorter_side` (keeps the aspect ratio), or none (no resizing)."""
    width: int = 0
    shorter_side: int = 0
    encoding: Encoding = "keep"
    quality: int = 90
    """JPEG quality, 1 to 95."""

    @property
    def rescales(self) -> bool:
        """Return whether images are resized."""
        return bool(self.height or self.shorter_side)

    @property
    def keeps(self) -> bool:
        """Return whether files are packed byte for byte, without decoding them."""
        return self.encoding == "keep"


def recipe_of(resize: str, encoding: Encoding | Literal["auto"], quality: int) -> Recipe:
    """Parse `resize`: `256` (shorter side), `224x224` (height x width) or `0` (no resizing).

    The encoding `auto` means `raw` for resized images, else `keep`. Raises UserError.
    """
    sides = resize.lower().split("x")
    try:
        numbers = [int(side) for side in sides]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or min(numbers) < 0 or (len(numbers) == 2 and min(numbers) < 1):
        raise UserError(
            f"resize is {resize!r}: wanted the shorter side in pixels (256), height x width (224x224), or 0 for none"
        )
    if not 1 <= quality <= 95:  # Pillow's documentation: above 95 files grow and pictures hardly improve
        raise UserError(f"quality is {quality}: wanted 1 to 95")
    rescales = any(numbers)
    if rescales and encoding == "keep":
        raise UserError(
            f"resize={resize} and encode=keep: a resized image is encoded again: wanted encode=raw, jpeg or png"
        )
    chosen: Encoding = ("raw" if rescales else "keep") if encoding == "auto" else encoding
    height, width = numbers if len(numbers) == 2 else (0, 0)
    return Recipe(
        height=height,
        width=width,
        shorter_side=numbers[0] if len(numbers) == 1 else 0,
        encoding=chosen,
        quality=quality,
    )


def kind_of(path: str) -> Kind:
    """Return the content of a file by its name's extension."""
    return KINDS.get(os.path.splitext(path)[1].lower(), "file")


def import_libraries(recipe: Recipe) -> None:
    """Import the libraries that `prepare` uses; raises UserError if one is not installed."""
    if not recipe.keeps:
        library("PIL.Image", "image", "rescaling").init()
        library("simplejpeg", "image", "rescaling")


def prepare(name: str, data: memoryview, kind: Kind, recipe: Recipe) -> PackedSample:
    """Return the sample to pack for a file; if the recipe keeps files as they are, it refers to `data` without a copy.

    Raises:
        DamagedError: the image can't be decoded.
    """
    ending = os.path.splitext(name)[1].lstrip(".").lower() or "bin"
    if recipe.keeps:
        return PackedSample(name, data, ending)
    try:
        pixels = _decoded(data, kind, recipe)
        pixels = _rescaled(pixels, recipe)
    except DlemuError:
        raise
    except (OSError, ValueError, SyntaxError, RuntimeError, EOFError, TypeError, LookupError, *_NPY_ERRORS) as error:
        reason = str(error).partition(" <_io.")[0]  # cuts off the BytesIO object that Pillow's messages end with
        raise DamagedError(reason or type(error).__name__) from error
    return _encoded(name, pixels, recipe)


def _decoded(data: memoryview, kind: Kind, recipe: Recipe) -> NDArray[np.uint8] | Any:
    """Return an array (height, width, channels) for JPEG and NumPy files, a Pillow image for others."""
    if kind == "npy":
        _array.parse(data, "it")  # first check the header: NumPy allocates whatever size it states
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        if not recipe.rescales:
            return array
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            raise ValueError(f"pixels of {array.dtype} in shape {array.shape}; wanted uint8, (height, width[, 3])")
        return array
    if kind == "jpeg":
        height, width, *_ = library("simplejpeg", "image").decode_jpeg_header(data)
        check_pixels(height, width)
        # libjpeg-turbo can shrink by eighths while it decodes: decode at no less than twice the final size.
        final = {"min_height": recipe.height or recipe.shorter_side, "min_width": recipe.width or recipe.shorter_side}
        minimum = {key: 2 * side for key, side in final.items()} if recipe.rescales else {}
        return library("simplejpeg", "image").decode_jpeg(data, "RGB", min_factor=2, **minimum)
    image = pillow_image(data)
    if image.mode in _SIXTEEN_BITS:
        return (np.asarray(image) >> 8).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, whose range is not known; wanted 8 or 16 bits")
    if image.mode not in _PLAIN_MODES:
        return image.convert("RGB")
    image.load()
    return image


def _rescaled(pixels: Any, recipe: Recipe) -> NDArray[np.uint8]:
    if not recipe.rescales:
        return np.asarray(pixels)
    pillow = library("PIL.Image", "image")
    image = pillow.fromarray(pixels.squeeze()) if isinstance(pixels, np.ndarray) else pixels
    if image.mode != "RGB":
        image = image.convert("RGB")
    width, height = recipe.width, recipe.height
    if recipe.shorter_side:
        factor = recipe.shorter_side / min(image.size)
        width, height = (max(1, round(side * factor)) for side in image.size)
    return np.asarray(image.resize((width, height), pillow.Resampling.BILINEAR, reducing_gap=_REDUCING_GAP))


def _encoded(name: str, pixels: NDArray[Any], recipe: Recipe) -> PackedSample:
    if recipe.encoding == "raw":
        pixels = np.ascontiguousarray(pixels)
        return PackedSample(name, pixels.reshape(-1).view(np.uint8).data, "bin", pixels)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise DamagedError(f"pixels of {pixels.dtype} in shape {pixels.shape} are not an image; wanted uint8")
    if recipe.encoding == "jpeg":
        shaped = np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])
        space = "GRAY" if shaped.shape[2] == 1 else "RGB"
        return PackedSample(
            name, memoryview(library("simplejpeg", "image").encode_jpeg(shaped, recipe.quality, space)), "jpg"
        )
    out = io.BytesIO()
    library("PIL.Image", "image").fromarray(pixels.squeeze()).save(out, "png", compress_level=_PNG_LEVEL)
    return PackedSample(name, out.getbuffer(), "png")
