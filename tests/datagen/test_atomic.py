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


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the quota is used up")]
)
def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new(number: int, said: str, tmp_path: Path) -> None:
    write_text(str(tmp_path), "summary.json", "old")

    def fail(out: BinaryIO) -> None:
        out.write(b"ne")
        raise OSError(number, os.strerror(number))

    with pytest.raises(SpaceError, match=rf"{said}: .*summary.json could not be written; .*, or move house"):
        write_file(str(tmp_path), "summary.json", fail, advice="move house")
    assert os.listdir(tmp_path) == ["summary.json"]
    assert (tmp_path / "summary.json").read_text() == "old"


@pytest.mark.parametrize("target", ["/dev/null", "page.html"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "page.html").symlink_to(target)  # as /dev/stdout leads to a terminal, and one that leads to itself
    said = "it is a device, wanted a regular file" if target[0] == "/" else "Too many levels of symbolic links"
    with pytest.raises(SpaceError, match=rf"page\.html could not be written: {said}; write to another folder"):
        write_text(str(tmp_path), "page.html", "<p>")
    assert os.listdir(tmp_path) == ["page.html"]
    assert os.readlink(tmp_path / "page.html") == target


def test_what_a_killed_writer_left_of_a_file_goes_when_it_is_written_again(tmp_path: Path) -> None:
    process = os.fork()
    if process == 0:
        write_file(str(tmp_path), "report.html", lambda out: (out.write(b"half"), out.flush(), os._exit(0)))
    os.waitpid(process, 0)
    assert len(os.listdir(tmp_path)) == 1, "under its temporary name"
    (tmp_path / "report.html.part").write_text("of somebody else")
    write_text(str(tmp_path), "report.html", "whole")
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.html.part"]
