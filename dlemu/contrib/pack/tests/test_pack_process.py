"""The process that packs, on a target that fails at the end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datagen.errors import UserError
from datagen.storage.posix import Storage
from dlemu.contrib.pack import process as pack_process
from dlemu.contrib.pack.process import PackRequest, pack_here
from dlemu.contrib.pack.words import PackSettings


def emit(message: object) -> None:
    pass


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
