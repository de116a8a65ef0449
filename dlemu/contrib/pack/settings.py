"""The settings of `dlemu pack`, read from the KEY=VALUE words of its command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import yaml

from datagen.formats.format_base import FormatBase, Packer
from datagen.registry import find
from datagen.settings import build
from dlemu.config import load
from dlemu.config.overrides import text_of
from dlemu.config.schema import Workload
from dlemu.contrib.pack.recipe import Recipe
from dlemu.extend import UserError

PackFormat = Literal["tfrecord", "webdataset"]
"""Formats with a Packer; listed here because finding out would import every format (a test compares)."""


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """Settings of one packing."""

    source: str = ""
    """Folder of images with any names; by default that of the workload's dataset."""
    target: str = ""
    """Folder of the packed files; empty: the subfolder `packed` of the source."""
    format: PackFormat = "tfrecord"
    processes: int = 1
    images: int = 0
    """Pack only the first so many images, sorted by name; 0: all."""
    images_per_file: int = 0
    """0: chosen so that each process writes several files, with 1024 images at most."""
    resize: str = "0"
    """`256`: pixels of the shorter side; `224x224`: height x width; `0`: no rescaling."""
    encode: Literal["auto", "keep", "raw", "jpeg"] = "auto"
    """Content of a sample: the unchanged file (keep), pixels (raw), or JPEG. `auto`: raw if rescaled, else keep."""
    evict: bool = True
    """Drop the images from the page cache first, so that the storage is measured."""
    workload: Workload | None = None
    """The workload whose dataset is packed, as read from the other words."""

    @property
    def recipe(self) -> Recipe:
        """How each image is rescaled and encoded; raises UserError."""
        try:
            sides = [int(side) for side in self.resize.lower().split("x")]
        except ValueError:
            sides = []
        if not (sides == [0] or (len(sides) in (1, 2) and min(sides) > 0)):
            raise UserError(
                f"resize is {self.resize!r}: wanted the shorter side in pixels (256), height x width (224x224), or 0 "
                "for none"
            )
        sides = [side for side in sides if side]
        if sides and self.encode == "keep":
            raise UserError(
                f"resize={self.resize} and encode=keep: a resized image is encoded again: wanted encode=raw or jpeg"
            )
        return Recipe(tuple(sides), ("raw" if sides else "keep") if self.encode == "auto" else self.encode)

    @property
    def packer(self) -> type[Packer]:
        """The writer class of the format."""
        packer: type[Packer] = find("datagen.formats", self.format, "Packer")
        return packer

    @property
    def format_type(self) -> type[FormatBase]:
        found: type[FormatBase] = find("datagen.formats", self.format, "Format")
        return found


def read_words(words: Sequence[str], config_dir: str | None = None) -> PackSettings:
    """Return the checked settings: a folder as `source`, or the workload whose dataset is packed; raises UserError."""
    own = {field.name for field in fields(PackSettings)} - {"workload"}
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
    for key, minimum in (("processes", 1), ("images", 0), ("images_per_file", 0)):
        if (value := getattr(settings, key)) < minimum:
            raise UserError(f"{key} is {value}: wanted {minimum} or more")
    _ = settings.recipe  # raises for what can't be
    workload = load(others, config_dir=config_dir) if wants_workload else None
    if workload is not None and workload.storage_spec.type != "posix":
        raise UserError(
            f"storage.storage_type is {workload.storage.storage_type}: dlemu pack reads and writes folders; wanted "
            "local_fs, or a mounted bucket"
        )
    source = workload.dataset.data_folder if workload else settings.source.rstrip("/")
    target = settings.target.rstrip("/") or os.path.join(source, "packed")
    return replace(settings, source=source, target=target, workload=workload)
