"""Runs the steps of a vendor's document, each a dlemu command, in order; reproduce.json lists their folders."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlemu.config import load
from dlemu.config.overrides import override, points, redact_argv
from dlemu.contrib.reproduce.document import Command, DocumentQuestion, Step, document_named
from dlemu.extend import UserError, check_launcher, child_run, owned, run_list
from dlemu.extend import run_folder as result_folder
from dlemu.results.kinds import kind_of_command

REPRODUCED = "reproduce.json"
_SET_BY_DOCUMENTS = ("workload", "ranks", "dataset.data_folder")  # settings that can't be overridden


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """A step that has ended, and where its results are."""

    name: str
    command: Command
    words: tuple[str, ...]
    folder: str
    """Name of the folder of its results, in the document's folder."""


@dataclass(frozen=True, kw_only=True)
class Reproduced(run_list.StudyAnswer):
    """A reproduced document: reproduce.json."""

    question: DocumentQuestion
    steps: tuple[StepDone, ...] = ()


def reproduce(
    question: DocumentQuestion, *, folder: str = "", on_event: Callable[[Any], None] = lambda _event: None
) -> tuple[Reproduced, str]:
    """Run the steps of a document; return the answer and its folder.

    Called again with the same question and folder, it continues after an interruption. Raises UserError, DlemuError.
    """
    check_launcher("reproduce", "")
    steps = list(document_named(question.document).plan(question))
    _check_question(question, steps)
    for words in (step.words for step in steps if step.command != "probe"):
        for point in points(words):
            load(point.words)  # reports a wrong setting before the first step runs; the step loads it again
    folder = folder or result_folder.new_folder("reproduce", f"{question.document}-")
    planned = [run_list.Planned(what=step, name=step.name, label=step.says, settings={}) for step in steps]
    runs = Steps(folder, replace(question, overrides=tuple(redact_argv(question.overrides))), planned, on_event)
    runs.resume()
    return runs.run_missing(), folder


class Steps(run_list.RunList[Step, StepDone, Reproduced]):
    """The steps of a document, as a list of runs that can be resumed."""

    file = REPRODUCED
    noun = "document"
    runs_in = "steps"
    answer_type = Reproduced

    def answer(self, *, complete: bool) -> Reproduced:
        return Reproduced(complete=complete, question=self.question, steps=tuple(self.runs))

    def is_of(self, run: StepDone, planned: run_list.Planned[Step]) -> bool:
        return run.name == planned.name

    def make_folder(self, planned: run_list.Planned[Step]) -> str:
        """Return the folder for a step: a new one, except that an interrupted sweep continues in its own."""
        if planned.what.command != "sweep":
            return super().make_folder(planned)
        folder = os.path.join(self.folder, planned.name)
        owned.take_folder(folder, "--output")
        return folder

    def start(self, planned: run_list.Planned[Step], folder: str) -> StepDone:
        """Run a step as a dlemu command; raises DlemuError with the command's message."""
        step = planned.what
        command = child_run.dlemu_command(step.command, *step.words)
        if step.command == "probe":
            command += ["--output", folder, "--json"]
        elif step.command == "sweep":
            command += [override(("output", "folder"), folder), "output.report=false"]
        result = "" if step.command == "datagen" else kind_of_command(step.command).answer
        child_run.run_commands([child_run.Command(words=command, folder=folder, result=result)])
        words = tuple(redact_argv(step.words))
        return StepDone(name=step.name, command=step.command, words=words, folder=os.path.basename(folder))


def _check_question(question: DocumentQuestion, steps: Sequence[Step]) -> None:
    """Raise UserError for unusable drives, prices and watts, and for overrides that the document does not allow."""
    if not question.drives:
        raise UserError("wanted drives=FOLDER[,FOLDER]: a folder on each of the storages to compare")
    for drive in question.drives:
        if not os.path.isdir(drive) or not os.access(drive, os.W_OK):
            raise UserError(f"{drive} is not a writable folder: wanted one on each of the storages to compare")
    for name, values in (("price", question.price), ("watts", question.watts)):
        if values and (len(values) != len(question.drives) or not all(0 < value < math.inf for value in values)):
            raise UserError(f"--{name}: wanted a number above 0 for each of the {len(question.drives)} drives")
    if question.overrides and not any(step.command == "sweep" for step in steps):
        raise UserError(f"{question.document} trains nothing: leave out {' '.join(question.overrides)}")
    for word in question.overrides:
        key = word.partition("=")[0].lstrip("+")
        if key in _SET_BY_DOCUMENTS or (key == "accelerator" and question.scale == "laptop"):
            raise UserError(f"{key} is set by the document: leave it out")
        if len(points([word])) > 1:
            raise UserError(f"{word} has several values: wanted one, since the document varies other settings")
