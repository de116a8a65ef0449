"""What this part adds to the tests that walk all commands and results (`tests.parts`)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from PIL import Image

from datagen.manifest import PACKED_NAME
from dlemu.contrib.pack.job import PackedSet
from dlemu.results.answer_files import save_answer
from tests.e2e.harness import DLEMU

KEPT_AS_THEY_ARE = ("pack.format=webdataset", "pack.encode=keep", "output.report=false")
PACK_IMAGES = ("pack", "pack.source=images", "pack.target=t", *KEPT_AS_THEY_ARE)


def sets(place: Path) -> None:
    settings: Any = {"source": "images", "format": "webdataset", "resize": "0", "encode": "keep"}
    for name in ("packed", "begun"):
        packed = PackedSet(images=1, images_per_file=1, complete=name == "packed", **settings)
        save_answer(str(place / name), PACKED_NAME, packed)
        (place / name / "train").mkdir()
        (place / name / "train" / "img_0_of_1.tar").write_bytes(b"x")


def small_pack(sources: Path, folder: Path) -> list[str]:
    own = (f"pack.source={sources}/images", f"pack.target={folder}-packed", f"output.folder={folder}", "ranks=3")
    return [DLEMU, "pack", *own, "pack.resize=16x16", "pack.images_per_file=4", "pack.evict=false"]


def cheapest(folder: Path) -> tuple[list[str], int, str]:
    Image.new("RGB", (8, 8)).save(folder / "images.png")
    return [f"pack.source={folder}", f"pack.target={folder / 'packed'}", "pack.evict=false"], 0, "packed"


RESULTS = {"pack": Path(__file__).parent / "result"}
PLACED = {"packed files": sets}
FILES = {"a list of packed files": (f"begun/{PACKED_NAME}", (*PACK_IMAGES[:2], "pack.target=begun", *KEPT_AS_THEY_ARE))}
FOLDERS = {
    "results of pack": ("place", (*PACK_IMAGES, "output.folder=place")),
    "images": ("place", ("pack", "pack.source=place", "pack.target=t", *KEPT_AS_THEY_ARE)),
    "packed files": ("place", ("pack", "pack.source=images", "pack.target=place", *KEPT_AS_THEY_ARE)),
}
COMMANDS = {"pack": small_pack}
ENDS = {"pack": signal.SIGINT}
READ = {"pack": "images"}
OWN_PLACES = {"pack": "-packed"}
CHEAPEST = {"pack": cheapest}
REFUSED = {"pack": ["pack", "pack.source=nowhere", "pack.target=packed"]}
NO_TEXT = {"pack": ["pack", "pack.source=\udce4", "pack.target=x"]}
