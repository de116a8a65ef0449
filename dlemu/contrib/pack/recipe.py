"""Prepares one image for a packed file with Pillow: decodes it, resizes it and encodes it again."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dlemu.extend import format_base, registry

IMAGES = (".jpeg", ".jpg", ".png", ".tif", ".tiff")  # endings of files that can be decoded
_JPEG_QUALITY = 90
# An image is first reduced by an integer factor to at least this many times the final size (a JPEG while it is
# decoded), which takes a fraction of the time for nearly the same result. Image.thumbnail has the same value.
_REDUCING_GAP = 2.0


class DamagedError(Exception):
    """An image can't be decoded. The message is the reason without the path, which the caller adds."""


@dataclass(frozen=True)
class Recipe:
    """How images are resized and encoded."""

    sides: tuple[int, ...]  # pixels: (height, width); (shorter,), which keeps the aspect ratio; or () for no resizing
    encoding: Literal["keep", "raw", "jpeg"]

    @property
    def keeps(self) -> bool:
        """Whether files are packed byte for byte, without decoding them."""
        return self.encoding == "keep"


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGES)


def import_libraries(recipe: Recipe) -> None:
    """Import the library that `prepare` uses; raises UserError if it is not installed."""
    if not recipe.keeps:
        registry.library("PIL.Image", "image", "rescaling").init()


def prepare(name: str, data: memoryview, recipe: Recipe) -> format_base.PackedSample:
    """Return the sample to pack for a file; raises DamagedError. A kept file refers to `data`, without a copy."""
    if recipe.keeps:
        return format_base.PackedSample(name, data, os.path.splitext(name)[1].lstrip(".").lower() or "bin")
    try:
        image = _resized(data, recipe.sides)
        if recipe.encoding == "raw":
            return format_base.PackedSample(name, memoryview(image.tobytes()), "bin")
        encoded = io.BytesIO()
        image.save(encoded, "jpeg", quality=_JPEG_QUALITY)
    except (OSError, ValueError, SyntaxError, RuntimeError, EOFError, TypeError, LookupError) as error:
        reason = str(error).partition(" <")[0]  # without the file object at the end of Pillow's messages
        raise DamagedError(reason or type(error).__name__) from error
    return format_base.PackedSample(name, encoded.getbuffer(), "jpg")


def _resized(data: memoryview, sides: tuple[int, ...]) -> Any:
    """Return an image with 8 bits per channel: RGB if resized, else grey or RGB; 16-bit grey keeps its upper bits."""
    from dlemu.extend import pillow_image  # late, as every run reads the settings, which import this module

    pillow = registry.library("PIL.Image", "image")
    image = pillow_image(data)
    width, height = image.size
    if len(sides) == 2:
        height, width = sides
    elif sides:
        factor = sides[0] / min(image.size)
        width, height = max(1, round(width * factor)), max(1, round(height * factor))
    if sides:
        image.draft("RGB", (round(width * _REDUCING_GAP), round(height * _REDUCING_GAP)))
    if image.mode.startswith("I;16"):
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, whose range is not known; wanted 8 or 16 bits")
    if image.mode != "RGB" and (sides or image.mode != "L"):  # converting RGB to RGB would copy the image
        image = image.convert("RGB")
    if not sides:
        return image
    return image.resize((width, height), pillow.Resampling.BILINEAR, reducing_gap=_REDUCING_GAP)
