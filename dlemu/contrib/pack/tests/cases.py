"""What this part adds to the tests that walk all commands, results and crews (`tests.parts`)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from datagen.manifest import PACKED_NAME
from dlemu.config.overrides import points
from dlemu.config.schema import Workload
from dlemu.contrib.pack import api, process, worker
from dlemu.contrib.pack.process import PackedSet
from dlemu.contrib.pack.result import PACK, PackFigures
from dlemu.contrib.pack.settings import PackSettings, read_words
from dlemu.contrib.pack.tests.made_packing import packing
from dlemu.results.answer_files import save_answer
from tests.e2e.harness import DLEMU
from tests.run.studies import Children, Study

KEPT_AS_THEY_ARE = ("format=webdataset", "encode=keep", "--no-report")
PACK_IMAGES = ("pack", "source=images", "target=t", *KEPT_AS_THEY_ARE)


def answer(folder: Path) -> Path:
    """Write the answer of a packing."""
    save_answer(str(folder), PACK, packing("images"))
    return folder / PACK


def sets(place: Path) -> None:
    """Put a set of packed files, and one that has begun."""
    for name in ("packed", "begun"):
        packed = PackedSet(
            source="images",
            images=1,
            images_per_file=1,
            format="webdataset",
            resize="0",
            encode="keep",
            complete=name == "packed",
        )
        save_answer(str(place / name), PACKED_NAME, packed)
        (place / name / "train").mkdir()
        (place / name / "train" / "img_0_of_1.tar").write_bytes(b"x")


def small_pack(sources: Path, folder: Path, *words: str) -> list[str]:
    """Pack small images in few files."""
    own = (f"source={sources}/images", f"target={folder}-packed", f"output.folder={folder}")
    return [DLEMU, "pack", *own, "resize=16x16", "images_per_file=4", "evict=false", *words]


def cheapest(folder: Path) -> tuple[list[str], int, str]:
    """Pack one image."""
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "images.png")
    return [f"source={folder}", f"target={folder / 'packed'}", "evict=false"], 0, "packed"


def is_understood(words: list[str]) -> bool:
    """Say whether the settings of a command of some page are those of a packing."""
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    return all(read_words(one.words) for one in points(settings))


def packer(work: Callable[..., Any], folder: Path, stopped_seconds: float) -> None:
    """Pack images that nobody can prepare."""
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    patch.object(worker, "prepare", work).start()
    patch.object(Workload, "timeout_seconds", stopped_seconds).start()
    target = str(folder / "packed")
    settings = PackSettings(source=str(folder), target=target, processes=2, images_per_file=1, evict=False)
    process.pack_here(settings, lambda _: None)


def pack(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    """Pack without packing anything."""
    figures = packing("images").points[0].figures

    def run_here(*_: object, **__: object) -> PackFigures:
        children()
        assert figures is not None
        return figures

    patch.setattr(api, "pack_here", run_here)
    source = folder.parent / "images"
    words = [f"source={source}", f"target={source}/{word}", "processes=1,2,3", f"output.folder={folder}"]
    return api.pack_points(words, None, None, children.watch)


# Foreign files and users' files
RESULTS = {"pack": Path(__file__).parent / "result"}
ANSWERS = {"pack": answer}
PLACED = {"packed files": sets}
FILES = {
    "the answer of pack": (f"pack/{PACK}", ("report", "pack")),
    "a packing that goes on": (f"pack/{PACK}", (*PACK_IMAGES, "output.folder=pack")),
    "a list of packed files": (f"begun/{PACKED_NAME}", (*PACK_IMAGES[:2], "target=begun", *KEPT_AS_THEY_ARE)),
}
FOLDERS = {
    "results of pack": ("place", (*PACK_IMAGES, "output.folder=place")),
    "images": ("place", ("pack", "source=place", "target=t", *KEPT_AS_THEY_ARE)),
    "packed files": ("place", ("pack", "source=images", "target=place", *KEPT_AS_THEY_ARE)),
}

# Commands that are ended or have odd surroundings
COMMANDS = {"pack": lambda sources, folder: small_pack(sources, folder, "processes=3")}
MORE_COMMANDS = {"packs": lambda sources, folder: small_pack(sources, folder, "processes=1,2", "--no-report")}
ENDS = {"pack": signal.SIGINT, "packs": signal.SIGKILL}
WRONG = {"pack": "resize=1x"}
READ = {"pack": "images"}
OWN_PLACES = {"pack": "-packed"}
CHEAPEST = {"pack": cheapest}
MADE_FIRST = {"pack": ["workload=colfax", "images=500", "target=packed", "format=webdataset"]}
REFUSED = {"pack": ["pack", "source=nowhere", "target=packed"]}
NO_TEXT = {"pack": ["pack", "source=\udce4", "target=x"]}
COMPOSED = {"pack": is_understood}

# What others start and go on with
CREWS = {"packer": packer}
STUDIES = {"pack": Study(pack, PACK, "packing", goes_on=True)}
