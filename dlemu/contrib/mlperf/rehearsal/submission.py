"""Rehearses a submission of several workloads one after another, then merges their trees and checks the whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from datagen import owned
from dlemu.config.published import without_secrets
from dlemu.contrib.mlperf.check.judge import REHEARSAL, Checked
from dlemu.contrib.mlperf.rehearsal import NOTE
from dlemu.contrib.mlperf.rehearsal.merge import merge_into, read_record
from dlemu.extend import UserError, check_place
from dlemu.results.answer_files import save_answer

SEPARATOR = "+"
"""Argument that separates the overrides of two parts on the command line."""
_PARTS = "parts"


class Part(Protocol):
    """A rehearsal of one workload."""

    @property
    def edition_name(self) -> str: ...

    @property
    def workload_name(self) -> str:
        """Name of the workload's folder in the tree."""

    @property
    def resumes(self) -> bool:
        """Whether an interrupted rehearsal continues in its folder, instead of starting over in a new one."""


def split(words: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each part; raises UserError for a part without any."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) > 1 and not all(parts):
        raise UserError(f"nothing before or after a {SEPARATOR!r}: wanted the overrides of a workload on both sides")
    return parts


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Rehearsals (parts) in the folder `parts/`, and their merged `tree/` next to it."""

    folder: str
    parts: Sequence[Sequence[str]]
    """The overrides of each part."""
    make: Callable[[Sequence[str], str], Part]
    """Returns the rehearsal for a part's overrides and folder; raises UserError for wrong settings."""
    run_part: Callable[[Any], object]
    """Runs one rehearsal, and prints its outcome."""
    report: Callable[[str], None]

    def run(self) -> Checked:
        """Rehearse the missing parts, merge all and check.

        Finished parts are kept: calling it again continues.

        Raises:
            UserError: a part has wrong settings; found before the first part begins.
            DlemuError, Interrupted: a part failed, or a signal stopped it.
        """
        check_place(self.folder)
        overrides = [list(words) for words in self.parts]
        planned = [self.make(words, self.folder) for words in overrides]  # all are checked before the first begins
        _check_parts(planned)
        self._begin_or_continue(overrides)
        folders = []
        for number, (part, words) in enumerate(zip(planned, overrides, strict=True), start=1):
            folder = self._folder(part)
            folders.append(folder)
            about = f"part {number} of {len(overrides)}, {part.workload_name}"
            if _is_complete(folder):
                self.report(f"{about}: done already")
                continue
            self.report(f"{about}:")
            self.run_part(self.make(words, folder))
        return merge_into(self.folder, folders)

    def _begin_or_continue(self, overrides: list[list[str]]) -> None:
        """Record the overrides; raises UserError if the folder holds a finished or a different rehearsal."""
        shown = [without_secrets(words) for words in overrides]
        if os.path.exists(os.path.join(self.folder, REHEARSAL)):
            record = read_record(self.folder)
            if record.get("complete") is True:
                raise UserError(f"{self.folder} holds a finished rehearsal; set output.folder to a new folder")
            if record.get("parts") != shown:
                raise UserError(
                    f"{self.folder} holds an interrupted rehearsal with other settings: set output.folder to a new "
                    "folder, or continue it with the settings that it began with (see rehearsal.json)"
                )
            return
        record = {"schema_version": 1, "rehearsal": NOTE, "complete": False, "parts": shown}
        save_answer(self.folder, REHEARSAL, record)

    def _folder(self, part: Part) -> str:
        """Return a part's folder: of its finished rehearsal, of one to continue, or a new one."""
        parent, folder = os.path.join(self.folder, _PARTS), ""
        for folder in _existing(os.path.join(parent, part.workload_name)):
            if _is_complete(folder):
                return folder
        return folder if folder and part.resumes else owned.fresh_folder(parent, part.workload_name)


def _existing(path: str) -> Iterator[str]:
    """Yield the existing folders that `owned.fresh_folder` made for a name (NAME, NAME-2, ...), oldest first."""
    number = 1
    while os.path.isdir(found := path if number == 1 else f"{path}-{number}"):
        yield found
        number += 1


def _is_complete(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, REHEARSAL)) and read_record(folder).get("complete") is True


def _check_parts(parts: Sequence[Part]) -> None:
    """Raise UserError unless all parts are of one edition, and each of another workload."""
    editions = sorted({part.edition_name for part in parts})
    if len(editions) > 1:
        each = ", ".join(f"{part.workload_name} of v{part.edition_name}" for part in parts)
        raise UserError(f"{each}: a tree must be of one edition; set --edition, or leave out workloads that it lacks")
    names = [part.workload_name for part in parts]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"{repeated} is in two parts: a tree can hold only one result of a workload on a system")
