"""A sweep of packings, whose storage does not always let it clean up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from datagen.errors import DlemuError, ServerError
from dlemu.jobs.pack import run as pack_run


def test_a_server_that_refuses_the_removal_does_not_hide_why_a_point_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (4, 4)).save(images / "0.png")

    def refuse(*_: Any) -> None:
        raise ServerError("the token has expired")

    def fail(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(pack_run, "remove_set", refuse)
        raise DlemuError("packer 0 was killed")

    monkeypatch.setattr(pack_run, "run_command", fail)
    monkeypatch.setattr(pack_run, "remove_set", lambda *_: None)
    folders = [f"target={tmp_path / 'packed'}", f"output.folder={tmp_path / 'sweep'}"]
    answer = pack_run.pack([f"source={images}", "processes=1,2", "encode=keep", *folders])
    assert answer.points[0].failure == "packer 0 was killed"
