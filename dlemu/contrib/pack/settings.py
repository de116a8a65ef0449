"""The settings of a packing: which images, how each is prepared, and where the packed files go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from dlemu.config.schema import at_least
from dlemu.contrib.pack.recipe import Recipe

PACK_FORMATS = ("tfrecord", "webdataset")  # formats with a Packer, listed to avoid the import of all formats


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """Packing: many images become a few large files, by as many processes as there are ranks."""

    source: str = ""
    """Folder of images with any names; empty: the workload's dataset."""
    target: str = ""
    """Folder of the packed files; empty: `packed` in the folder of the images."""
    format: str = "tfrecord"
    """Format of the packed files: `tfrecord`, with the index that DLIO writes, or `webdataset`; or a dotted name."""
    images: Annotated[int, at_least(0)] = 0
    """Pack only the first so many images, sorted by name; 0: all."""
    images_per_file: Annotated[int, at_least(0)] = 0
    """0: chosen so that each rank writes several files, with 1024 images at most."""
    resize: int | str = 0
    """`256`: pixels of the shorter side; `224x224`: height x width; `0`: no rescaling."""
    encode: Literal["auto", "keep", "raw", "jpeg"] = "auto"
    """Content of a sample: the unchanged file (keep), pixels (raw), or JPEG. `auto`: raw if rescaled, else keep."""
    evict: bool = True
    """Drop the images from the page cache first, so that the storage is measured."""

    @property
    def recipe(self) -> Recipe:
        """How each image is rescaled and encoded; raises ValueError for an invalid `resize`."""
        sides = [int(side) for side in str(self.resize).lower().split("x")]
        if not (sides == [0] or (len(sides) in (1, 2) and min(sides) > 0)):
            raise ValueError(str(self.resize))
        final_sides = tuple(side for side in sides if side)  # empty for `0`
        if self.encode == "auto":
            return Recipe(final_sides, "raw" if final_sides else "keep")
        return Recipe(final_sides, self.encode)

    def problems(self, where: str) -> Iterator[str]:
        """Yield a message for each invalid value or combination of values."""
        if self.format not in PACK_FORMATS and "." not in self.format:
            wanted = f"one of {', '.join(PACK_FORMATS)}, or the dotted name of yours, with a Packer"
            yield f"{where}.format is {self.format!r}: wanted {wanted}"
        try:
            recipe = self.recipe
        except ValueError:
            yield (
                f"{where}.resize is {self.resize!r}: wanted the shorter side in pixels (256), height x width (224x224),"
                " or 0 for none"
            )
            return
        if recipe.sides and recipe.keeps:
            yield (
                f"{where}.resize={self.resize} and {where}.encode=keep: a resized image is encoded again: wanted "
                f"{where}.encode=raw or jpeg"
            )


SECTION = ("pack", PackSettings)
