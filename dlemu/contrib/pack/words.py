"""The settings of `dlemu pack`, read from the KEY=VALUE words of its command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import yaml

from datagen.formats.format_base import Packer
from datagen.registry import companion
from datagen.settings import build, joined_problems
from dlemu.config import load
from dlemu.config.overrides import text_of
from dlemu.config.schema import Workload
from dlemu.contrib.pack.recipe import Recipe, recipe_of
from dlemu.extend import UserError

PACKED = "packed"
"""Default name of the target: a subfolder of the source."""
MAX_AHEAD = 64  # each process holds so many whole images in memory


PACK_FORMATS = ("npz", "parquet", "tfrecord", "webdataset")
"""Formats with a Packer; listed here because finding out would import every format (a test compares)."""


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """Settings of one packing."""

    source: str = ""
    """Folder of images with any names; empty: the workload's dataset is packed."""
    target: str = ""
    """Folder of the packed files; empty: the subfolder `packed` of the source."""
    format: str = "tfrecord"
    processes: int = 1
    images: int = 0
    """Pack only the first so many images, sorted by name; 0: all."""
    images_per_file: int = 0
    """0: chosen so that each process writes several files, with 1024 images at most."""
    resize: str = "0"
    """`256`: pixels of the shorter side; `224x224`: height x width; `0`: no rescaling."""
    encode: Literal["auto", "keep", "raw", "jpeg", "png"] = "auto"
    """Content of a sample: the unchanged file (keep), pixels (raw), or an image. `auto`: raw if rescaled, else keep."""
    quality: int = 90
    ahead: int = 2
    """Images that a process reads while it works on one."""
    skip_damaged: bool = False
    """Skip and count images that can't be decoded; otherwise the first one ends the packing."""
    evict: bool = True
    """Drop the images from the page cache first, so that the storage is measured."""
    odirect: bool = False
    """Bypass the page cache (O_DIRECT)."""
    keep: bool = False
    """Keep the packed files of each point of a sweep; those of a single packing are always kept."""

    @property
    def recipe(self) -> Recipe:
        """How each image is rescaled and encoded; raises UserError."""
        return recipe_of(self.resize, self.encode, self.quality)

    @property
    def packer(self) -> type[Packer]:
        """The writer class of the format; raises UserError."""
        is_known = self.format in PACK_FORMATS or "." in self.format
        packer: type[Packer] | None = companion("datagen.formats", self.format, "Packer") if is_known else None
        if packer is None:
            known = ", ".join(PACK_FORMATS)
            raise UserError(
                f"format is {self.format!r}: wanted one of {known}, or the dotted name of yours, with a Packer"
            )
        return packer

    def check(self) -> None:
        """Raise UserError for values out of range, and for combinations that are not possible."""
        problems = [
            f"{key} is {value}: wanted {minimum} or more"
            for key, minimum in (("processes", 1), ("images", 0), ("images_per_file", 0), ("ahead", 1))
            if (value := getattr(self, key)) < minimum
        ]
        if self.ahead > MAX_AHEAD:
            problems.append(f"ahead is {self.ahead}: wanted {MAX_AHEAD} at most")
        recipe, packer = self.recipe, self.packer
        if packer.wants_arrays and (recipe.encoding != "raw" or recipe.shorter_side):
            problems.append(
                f"format={self.format} packs arrays of one shape: wanted resize=HEIGHTxWIDTH with encode=raw, or "
                "encode=raw for .npy files that have one shape"
            )
        if problems:
            raise UserError(joined_problems(problems))

    def shaping(self) -> dict[str, Any]:
        """Return the settings that determine the bytes of the packed files."""
        keys = ("format", "images", "resize", "encode", "quality")
        return {key: getattr(self, key) for key in keys}


def read_words(words: Sequence[str], config_dir: str | None = None) -> tuple[PackSettings, Workload | None]:
    """Return the settings and, if no `source` is named, the workload whose dataset is packed; raises UserError."""
    own = {field.name for field in fields(PackSettings)}
    given: dict[str, object] = {}
    others = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in own:
            is_text = key in ("resize", "source", "target", "format")
            given[key] = text_of(word) if is_text else yaml.safe_load(value.strip("\"'"))
        else:
            others.append(word)
    wants_workload = any(word.startswith("workload=") for word in others)
    if not wants_workload:
        given |= {word.partition("=")[0]: word.partition("=")[2] for word in others}  # `build` rejects unknown keys
    settings = build(PackSettings, given)
    if bool(settings.source) == wants_workload:
        raise UserError(
            "wanted either source=FOLDER, with images of any names, or workload=NAME, whose dataset is packed: "
            "dlemu pack source=/mnt/images target=/mnt/packed processes=8 resize=256"
        )
    settings.check()
    return settings, load(others, config_dir=config_dir) if wants_workload else None
