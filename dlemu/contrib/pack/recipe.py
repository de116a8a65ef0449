"""Prepares one image for a packed file: decodes, resizes and encodes it again, with Pillow and simplejpeg."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datagen.formats._picture import check_pixels, pillow_image
from datagen.formats.format_base import PackedSample
from datagen.registry import library
from dlemu.extend import DlemuError

IMAGES = (".jpeg", ".jpg", ".png", ".tif", ".tiff")
"""Endings, in lower case, of the names of files that are decoded; others are packed only as they are."""
_QUALITY = 90
_REDUCING_GAP = 2.0
"""Pillow first shrinks by a whole factor, to no less than this many times the final size: nearly the same picture in
a fraction of the time (`reducing_gap` of Image.resize; Image.thumbnail has the same value)."""


class DamagedError(Exception):
    """An image that can't be decoded; the message has the reason without the path, which the caller knows."""


@dataclass(frozen=True)
class Recipe:
    """How images are resized and encoded."""

    sides: tuple[int, ...]
    """Pixels: height and width, or the shorter side alone, which keeps the shape; none: no resizing."""
    encoding: Literal["keep", "raw", "jpeg"]

    @property
    def keeps(self) -> bool:
        """Whether files are packed byte for byte, without decoding them."""
        return self.encoding == "keep"


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGES)


def import_libraries(recipe: Recipe) -> None:
    """Import the libraries that `prepare` uses; raises UserError if one is not installed."""
    if not recipe.keeps:
        library("PIL.Image", "image", "rescaling").init()
        library("simplejpeg", "image", "rescaling")


def prepare(name: str, data: memoryview, recipe: Recipe) -> PackedSample:
    """Return the sample to pack for a file; if the recipe keeps files as they are, it refers to `data` without a copy.

    Raises DamagedError.
    """
    ending = os.path.splitext(name)[1].lstrip(".").lower() or "bin"
    if recipe.keeps:
        return PackedSample(name, data, ending)
    try:
        decoded = _jpeg_pixels(data, recipe) if ending in ("jpeg", "jpg") else _pillow_pixels(data)
        pixels = np.ascontiguousarray(_rescaled(decoded, recipe) if recipe.sides else decoded)
    except DlemuError:
        raise
    except (OSError, ValueError, SyntaxError, RuntimeError, EOFError, TypeError, LookupError) as error:
        reason = str(error).partition(" <_io.")[0]  # cuts off the BytesIO object that Pillow's messages end with
        raise DamagedError(reason or type(error).__name__) from error
    if recipe.encoding == "raw":
        return PackedSample(name, pixels.reshape(-1).data, "bin")
    shaped = pixels if pixels.ndim == 3 else pixels[..., None]
    encoded = library("simplejpeg", "image").encode_jpeg(shaped, _QUALITY, "GRAY" if shaped.shape[2] == 1 else "RGB")
    return PackedSample(name, memoryview(encoded), "jpg")


def _jpeg_pixels(data: memoryview, recipe: Recipe) -> Any:
    simplejpeg = library("simplejpeg", "image")
    check_pixels(*simplejpeg.decode_jpeg_header(data)[:2])
    if not recipe.sides:
        return simplejpeg.decode_jpeg(data, "RGB")
    # libjpeg-turbo can shrink by eighths while it decodes: decode at no less than twice the final size.
    height, width = 2 * recipe.sides[0], 2 * recipe.sides[-1]
    return simplejpeg.decode_jpeg(data, "RGB", min_factor=2, min_height=height, min_width=width)


def _pillow_pixels(data: memoryview) -> Any:
    """Return an image in 8 bits, grey or RGB; of 16-bit grey the upper half of each pixel."""
    image = pillow_image(data)
    if image.mode.startswith("I;16"):
        return (np.asarray(image) >> 8).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, whose range is not known; wanted 8 or 16 bits")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _rescaled(pixels: Any, recipe: Recipe) -> NDArray[np.uint8]:
    pillow = library("PIL.Image", "image")
    image = (pillow.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels).convert("RGB")
    if len(recipe.sides) == 2:
        height, width = recipe.sides
    else:
        factor = recipe.sides[0] / min(image.size)
        width, height = (max(1, round(side * factor)) for side in image.size)
    return np.asarray(image.resize((width, height), pillow.Resampling.BILINEAR, reducing_gap=_REDUCING_GAP))
