"""The processes that pack, at a moment that no clock hits: each is ended before it has taken a file."""

from __future__ import annotations

import errno
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from datagen.errors import ServerError, UserError
from datagen.storage.posix import Storage
from dlemu import DlemuError
from dlemu.contrib.pack import process as pack_process
from dlemu.contrib.pack.packed_set import PackedFile, Skipped
from dlemu.contrib.pack.process import PackRequest, pack_here
from dlemu.contrib.pack.words import PackSettings
from dlemu.contrib.pack.worker import _shortened
from dlemu.telemetry import HostTelemetry, Task


def emit(message: object, *, droppable: bool = False) -> None:
    pass


class EndsThem:
    """A recorder that ends all who pack when the training is to begin: they have said that they are ready."""

    def __init__(self, task: Task, _folder: str) -> None:
        self.ended = 0

    def mark(self, *, training: bool) -> None:
        """End them."""
        for process in psutil.Process().children():
            if process.name() == "dlemu-packer":
                process.kill()
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                self.ended += 1
        assert self.ended == 2

    def stop(self) -> HostTelemetry | None:
        """Have nothing."""
        return None


@pytest.mark.parametrize("refused", [False, True], ids=["removes", "may not remove"])
def test_the_end_of_all_who_pack_is_told_before_they_took_a_file(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server refuses to remove what they left."""
    images = tmp_path / "images"
    images.mkdir()
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(images / f"{number}.png")
    target = str(tmp_path / "packed")
    settings = PackSettings(source=str(images), target=target, processes=2, images_per_file=2, evict=False)

    class Ends(EndsThem):
        def mark(self, *, training: bool) -> None:
            super().mark(training=training)
            if refused:
                monkeypatch.setattr(Storage, "remove_unfinished", refuse)

    def refuse(storage: Storage, folder: str) -> None:
        raise ServerError("the token has expired")

    monkeypatch.setattr(pack_process, "start_recorder", Ends)
    with pytest.raises(
        DlemuError, match=r"packer [01] \(process \d+\) was killed by SIGKILL; .* run the same command again"
    ):
        pack_here(PackRequest(settings=settings, workload=None, target=target), emit)


@pytest.mark.parametrize("fails", ["journal", "sync", "packed.json", "removal"])
def test_a_target_that_fails_at_the_end_is_named(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal that can't be removed is no failure: packed.json is what counts."""
    images, target = tmp_path / "images", str(tmp_path / "packed")
    images.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(images / "0.png")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    match fails:
        case "journal":
            monkeypatch.setattr(pack_process._Journal, "add", fail)
        case "sync":
            monkeypatch.setattr(Storage, "sync", fail)
        case "packed.json":
            monkeypatch.setattr(pack_process, "write_set", fail)
        case _:
            monkeypatch.setattr(Storage, "remove", fail)
    settings = PackSettings(source=str(images), target=target, evict=False)
    request = PackRequest(settings=settings, workload=None, target=target)
    if fails == "removal":
        assert pack_here(request, emit).images == 1
        return
    with pytest.raises(UserError, match=f"{target}: Read-only file system: target can't be written"):
        pack_here(request, emit)


def test_a_file_with_many_skipped_images_is_reported_with_all_of_them() -> None:
    skipped = tuple(Skipped(path=f"images/{number:06}.png", reason="it can't be decoded") for number in range(20_000))
    many = PackedFile(number=3, samples=1, source_bytes=9, bytes=5, crc32=7, payload_bytes=5, skipped=skipped)
    assert len(_shortened(many).skipped) == 20_000
    assert len(pickle.dumps(_shortened(many))) < 100_000
    few = replace(many, skipped=skipped[:9])
    assert _shortened(few) == few


def test_a_drive_that_fails_where_nobody_looked_ends_a_packing_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/mnt/packed")

    monkeypatch.setattr(pack_process, "images_below", fail)
    request = PackRequest(settings=PackSettings(source="/mnt/images"), workload=None, target="/mnt/packed")
    with pytest.raises(UserError, match=r"^/mnt/packed: Input/output error: the storage failed"):
        pack_here(request, emit)
