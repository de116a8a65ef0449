"""The processes that pack, at a moment that no clock hits: each is ended before it has taken a file."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from PIL import Image

from datagen.packing.packed_set import verify_set
from datagen.storage.storage_base import FOLDERS, open_storage
from dlemu import DlemuError
from dlemu.packing import pack_process
from dlemu.packing.pack_process import _Crew
from dlemu.telemetry import HostTelemetry, Task


class EndsThem:
    """A recorder that ends all who pack when the training is to begin: they have said that they are ready."""

    def __init__(self, task: Task, _folder: str) -> None:
        self.ended = 0

    def mark(self, *, training: bool) -> None:
        """End them."""
        for process in psutil.Process().children():
            if process.name() == "dlemu-pack":
                process.kill()
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                self.ended += 1
        assert self.ended == 2

    def stop(self) -> HostTelemetry | None:
        """Have nothing."""
        return None


def test_the_end_of_all_who_pack_is_told_before_they_took_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(images / f"{number}.png")
    target = str(tmp_path / "packed")
    words = (f"source={images}", f"target={target}", "processes=2", "images_per_file=2", "evict=false")
    monkeypatch.setattr(pack_process, "start_recorder", EndsThem)
    with pytest.raises(DlemuError, match="of 2 was ended by SIGKILL while it packed: run the same command again"):
        pack_process.pack_here(pack_process.Order(words=words, target=target), str(tmp_path))


def test_what_a_process_reported_before_it_ended_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # its last words are in the pipe when it has ended: on a busy host it ends before the first are read
    images, target = tmp_path / "images", str(tmp_path / "packed")
    images.mkdir()
    for number in range(6):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(images / f"{number}.png")
    reap = _Crew._reap

    def reap_when_ended(crew: _Crew) -> None:
        if crew.finished:
            for process in crew.processes:
                os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        reap(crew)

    monkeypatch.setattr(_Crew, "_reap", reap_when_ended)
    in_pieces = SimpleNamespace(**vars(os) | {"read": lambda file, most: os.read(file, min(most, 64))})
    monkeypatch.setattr(pack_process, "os", in_pieces)
    words = (f"source={images}", f"target={target}", "processes=1", "images_per_file=1", "evict=false")
    pack_process.pack_here(pack_process.Order(words=words, target=target), str(tmp_path))
    assert verify_set(target, open_storage(FOLDERS)) == []
