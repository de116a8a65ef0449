"""A rehearsed submission: several rehearsals one after another, then one tree of all, checked whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.config.published import without_secrets
from dlemu.mlperf.check.judge import REHEARSAL, Checked
from dlemu.mlperf.rehearsal import NOTE
from dlemu.mlperf.rehearsal.merge import lay_together, read_record
from dlemu.runner.run_folder import check_place

SEPARATOR = "+"
"""Between the overrides of two parts, as a word of its own; no override is spelled so."""
_PARTS = "parts"


class Part(Protocol):
    """A rehearsal of one workload."""

    @property
    def edition_name(self) -> str: ...

    @property
    def called(self) -> str:
        """What the tree calls the workload."""

    @property
    def resumes(self) -> bool:
        """Whether an interrupted one goes on in its folder; else it starts over in another."""


def split(words: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each part; raises UserError for a part without any."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) > 1 and not all(parts):
        raise UserError(f"nothing comes before or after a {SEPARATOR!r}: wanted the overrides of a workload")
    return parts


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Its parts, which are below `parts/`, and their one `tree/` beside them."""

    folder: str
    parts: Sequence[Sequence[str]]
    """The overrides of each."""
    make: Callable[[Sequence[str], str], Part]
    """Returns the rehearsal of a part in a folder; raises UserError for what is wrong with its settings."""
    run_part: Callable[[Any], object]
    """Runs one, and shows what became of it."""
    report: Callable[[str], None]

    def run(self) -> Checked:
        """Run what is missing, merge and check.

        Raises UserError for what is wrong with any part before the first of them begins, and what a part raised.
        What is finished is kept, and calling again goes on.
        """
        check_place(self.folder, ours=(REHEARSAL,))
        asked = [list(words) for words in self.parts]
        planned = [self.make(words, self.folder) for words in asked]  # all are checked before the first begins
        _check_alike(planned)
        self._take_over(asked)
        folders = []
        for number, (part, words) in enumerate(zip(planned, asked, strict=True), start=1):
            folder = self._folder(part)
            folders.append(folder)
            about = f"part {number} of {len(asked)}, {part.called}"
            if _is_complete(folder):
                self.report(f"{about}: done already")
                continue
            self.report(f"{about}:")
            self.run_part(self.make(words, folder))
        return lay_together(self.folder, folders)

    def _take_over(self, asked: list[list[str]]) -> None:
        """Put the question on record; raises UserError for a folder with something else or all of it."""
        shown = [without_secrets(words) for words in asked]
        if os.path.exists(os.path.join(self.folder, REHEARSAL)):
            record = read_record(self.folder)
            if record.get("complete") is True:
                raise UserError(f"{self.folder} holds a finished rehearsal; set output.folder to a new folder")
            if record.get("parts") != shown:
                raise UserError(
                    f"{self.folder} holds an interrupted rehearsal with other settings: set output.folder to a new "
                    "folder, or continue it with the settings that it began with (rehearsal.json has them)"
                )
            return
        record = {"schema_version": 1, "rehearsal": NOTE, "complete": False, "parts": shown}
        write_text(self.folder, REHEARSAL, json.dumps(record, indent=2) + "\n")

    def _folder(self, part: Part) -> str:
        """Return where a part lies: finished, to go on, or new."""
        parent, folder = os.path.join(self.folder, _PARTS), ""
        for folder in _numbered(os.path.join(parent, part.called)):
            if _is_complete(folder):
                return folder
        return folder if folder and part.resumes else owned.fresh_folder(parent, part.called)


def _numbered(path: str) -> Iterator[str]:
    """Yield the folders of a name that are there, in the order in which they were made (`owned.fresh_folder`)."""
    number = 1
    while os.path.isdir(found := path if number == 1 else f"{path}-{number}"):
        yield found
        number += 1


def _is_complete(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, REHEARSAL)) and read_record(folder).get("complete") is True


def _check_alike(parts: Sequence[Part]) -> None:
    editions = sorted({part.edition_name for part in parts})
    if len(editions) > 1:
        each = ", ".join(f"{part.called} of v{part.edition_name}" for part in parts)
        raise UserError(f"{each}: one tree is of one edition; set --edition, or leave out what the edition lacks")
    names = [part.called for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is in two parts: a tree has one result of a workload on a system")
