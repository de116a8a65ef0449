"""What has its name is complete, and what could not be written says so."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from datagen.atomic import write_file, write_text
from datagen.errors import SpaceError


def test_a_file_appears_whole_with_the_folders_it_needs(tmp_path: Path) -> None:
    write_text(str(tmp_path / "run"), "dlio/summary.json", "{}\n")
    assert (tmp_path / "run/dlio/summary.json").read_text() == "{}\n"
    assert os.listdir(tmp_path / "run/dlio") == ["summary.json"]


def test_a_file_may_lie_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text("", "page.html", "<p>")
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new(tmp_path: Path) -> None:
    write_text(str(tmp_path), "summary.json", "old")

    def fail(out: BinaryIO) -> None:
        out.write(b"ne")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(SpaceError, match=r"the disk is full: .*summary.json could not be written; .*, or move house"):
        write_file(str(tmp_path), "summary.json", fail, advice="move house")
    assert os.listdir(tmp_path) == ["summary.json"]
    assert (tmp_path / "summary.json").read_text() == "old"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "dlio").write_text("")
    with pytest.raises(SpaceError, match=r"dlio/summary\.json could not be written") as failed:
        write_text(str(tmp_path / "dlio"), "summary.json", "{}")
    assert "live/" not in str(failed.value), "only a run's own files have step logs beside them"
