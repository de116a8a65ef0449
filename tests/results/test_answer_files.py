"""Answers of commands come back as they were saved, and what is none of ours is told in one line."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from datagen import owned
from datagen.errors import SpaceError, UserError
from datagen.owned import MARKER
from dlemu.results.answer_files import ANSWER_VERSION, read_answer, save_answer

NAME = "answer.json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One as commands have them."""

    schema_version: int = ANSWER_VERSION
    drive: str
    rate: float = 0.0


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    assert read_answer(str(tmp_path), NAME, Answer) is None
    save_answer(str(tmp_path), NAME, Answer(drive="fast", rate=2.5))
    assert read_answer(str(tmp_path), NAME, Answer) == Answer(drive="fast", rate=2.5)
    save_answer(str(tmp_path), NAME, Answer(drive="slow"))
    assert read_answer(str(tmp_path), NAME, Answer) == Answer(drive="slow")
    assert {path.name for path in tmp_path.iterdir()} == {NAME, MARKER}, "the folder is dlemu's now"


@pytest.mark.parametrize("marks", [False, True], ids=["answer", "marker"])
def test_a_full_disk_is_told_and_an_empty_folder_does_not_stay(
    marks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owned, "claim" if marks else "create_part", refuse)
    name = MARKER if marks else NAME
    with pytest.raises(SpaceError, match=rf"{re.escape(name)} could not be written.*; free some space, or write to"):
        save_answer(str(tmp_path / "new" / "folder"), NAME, Answer(drive="fast"))
    assert (tmp_path / "new").exists() == marks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "has no schema_version"),
        ('{"schema_version": 2, "drive": "x"}', "has schema_version 2, wanted 1"),
        ('{"schema_version": 1}', "is damaged .*drive"),
        ('{"schema_version": 1, "drive": 3}', "is damaged"),
    ],
)
def test_what_is_no_answer_is_told_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        read_answer(str(tmp_path), NAME, Answer)
    assert str(tmp_path / NAME) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_to_nothing_is_told_and_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=NAME):
        read_answer(str(tmp_path), NAME, Answer)
