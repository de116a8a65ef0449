"""A sweep of packings, whose storage does not always let it clean up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from datagen.errors import DlemuError, ServerError
from dlemu.contrib.pack import run as pack_run
from dlemu.runner.clean_process import run_clean


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (4, 4)).save(folder / "0.png")
    return folder


def refuse(*_: Any) -> None:
    raise ServerError("the token has expired")


def test_of_a_point_that_failed_the_files_that_stay_are_named_after_the_reason(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(pack_run, "remove_set", refuse)
        raise DlemuError("packer 0 was killed")

    monkeypatch.setattr(pack_run, "run_clean", fail)
    monkeypatch.setattr(pack_run, "remove_set", lambda *_: None)
    folders = [f"target={tmp_path / 'packed'}", f"output.folder={tmp_path / 'sweep'}"]
    answer = pack_run.pack([f"source={images}", "processes=1,2", "encode=keep", *folders])
    left = f"{tmp_path / 'packed' / 'point-01'}: the packed files of this point could not all be removed"
    assert answer.points[0].failure == f"packer 0 was killed\n{left}: the token has expired"
    assert answer.points[0].exit_status == DlemuError.exit_status


def test_a_server_that_refuses_the_removal_does_not_undo_a_measured_point(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*words: Any, **more: Any) -> Any:
        figures = run_clean(*words, **more)
        monkeypatch.setattr(pack_run, "remove_set", refuse)
        return figures

    monkeypatch.setattr(pack_run, "run_clean", measure)
    folders = [f"target={tmp_path / 'packed'}", f"output.folder={tmp_path / 'sweep'}"]
    first, second = pack_run.pack([f"source={images}", "images=0,1", "encode=keep", *folders]).points
    assert first.figures is not None
    assert first.figures.images == 1
    assert first.figures.warnings[-1].endswith(
        f"{tmp_path / 'packed' / 'point-01'}: the packed files of this point could not all be removed: "
        "the token has expired"
    )
    assert second.failure == "the token has expired", "nor what an interrupted run left there"
