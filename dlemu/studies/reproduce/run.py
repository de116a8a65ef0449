"""The steps of a document one after another, each a command of dlemu; reproduce.json says where their results lie."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from datagen.errors import UserError
from datagen.owned import take_folder
from datagen.registry import find, names, nearest
from dlemu.comm import detect_launcher
from dlemu.config.published import without_secrets
from dlemu.metrics.verdict import COMPLETED
from dlemu.results.answer_files import ANSWER_VERSION, read_answer
from dlemu.results.kinds import kind_of_command
from dlemu.runner.child_run import run_command
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunBegan, RunEnded, RunList, RunsPlanned
from dlemu.studies.reproduce.steps import Command, DocumentQuestion, Step

REPRODUCED = "reproduce.json"
DOCUMENTS = "dlemu.studies.reproduce.documents"


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """A step that has ended."""

    name: str
    command: Command
    words: tuple[str, ...]
    seconds: float
    folder: str = ""
    """Where its results lie; empty in files of older versions: the folder had its name."""

    @property
    def place(self) -> str:
        """Return the folder of its results, below that of the document."""
        return self.folder or self.name


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """A document reproduced: reproduce.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    title: str
    about: str
    question: DocumentQuestion
    capacity_tb: tuple[float | None, ...] = ()
    """Of the file system of each drive, 1e12 bytes."""
    steps: tuple[StepDone, ...] = ()


OnEvent = Callable[[RunsPlanned | RunBegan | RunEnded[StepDone, Reproduced]], None]


def document_names() -> list[str]:
    """Return the documents by the names that users write."""
    return [name.replace("_", "-") for name in names(DOCUMENTS)]


def module_of(document: str) -> str:
    """Return the module of a document; raises UserError for one that is not here, whoever names it."""
    module = document.replace("-", "_")
    if module not in names(DOCUMENTS):
        hint = nearest(document, document_names())
        raise UserError(f"there is no document {document!r}: {hint}wanted one of {', '.join(document_names())}")
    return module


def reproduce(
    question: DocumentQuestion,
    *,
    folder: str = "",
    config_dir: str | None = None,
    on_event: OnEvent = lambda _event: None,
) -> tuple[Reproduced, str]:
    """Run what makes a document's figures and tables; return where they are, and their folder.

    An interrupted one goes on when it is called with the same question and its folder. Datasets stay on the drives,
    below folders named by their workloads. Raises UserError, DlemuError.
    """
    module = module_of(question.document)
    _check(question)
    public = replace(question, overrides=tuple(without_secrets(question.overrides)))
    folder = folder or new_folder("reproduce", f"{question.document}-")
    steps: list[Step] = find(DOCUMENTS, module, "steps")(question)
    planned = [
        Planned(what=step, name=step.name, label=f"{number} of {len(steps)}: {step.says}", settings={})
        for number, step in enumerate(steps, start=1)
    ]
    runs = Document(folder, public, planned, on_event)
    runs.config_dir = config_dir
    runs.resume()
    return runs.run_missing(), folder


class Document(RunList[Step, StepDone, Reproduced]):
    """The steps of a document."""

    file, noun, runs_in, answer_type = REPRODUCED, "document", "steps", Reproduced
    config_dir: str | None = None

    def answer(self, *, complete: bool) -> Reproduced:
        """Return the document by the steps on record."""
        module = module_of(self.question.document)
        return Reproduced(
            complete=complete,
            title=find(DOCUMENTS, module, "TITLE"),
            about=find(DOCUMENTS, module, "ABOUT"),
            question=self.question,
            capacity_tb=tuple(_capacity_tb(drive) for drive in self.question.drives),
            steps=tuple(self.runs),
        )

    def is_of(self, run: StepDone, planned: Planned[Step]) -> bool:
        """Return whether a step on record is the planned one."""
        return run.name == planned.name

    def make_folder(self, planned: Planned[Step]) -> str:
        """Return the folder of a step that begins; sweeps and packings go on where they were interrupted."""
        if planned.what.command not in ("sweep", "pack"):
            return super().make_folder(planned)
        folder = os.path.join(self.folder, planned.name)
        take_folder(folder, "--output")
        return folder

    def start(self, planned: Planned[Step], folder: str) -> StepDone:
        """Run one command, as a user would; raises with its own message."""
        step = planned.what
        command = [sys.executable, "-m", "dlemu", step.command, *step.words]
        if self.config_dir is not None and step.command != "probe":
            command += ["--config-dir", self.config_dir]
        match step.command:
            case "probe":
                command += ["--output", folder, "--json"]
            case "pack":
                command += [f"output.folder={folder}", "--no-report"]
            case "train" | "sweep":
                command += [f"output.folder={folder}", "output.report=false"]
        began = time.monotonic()
        kind = None if step.command == "datagen" else kind_of_command(step.command)
        done = COMPLETED if kind is not None and kind.job else (0,)
        run_command(command, folder, lambda: None, "" if kind is None else kind.answer, done=done)
        return StepDone(
            name=step.name,
            command=step.command,
            words=tuple(without_secrets(step.words)),
            seconds=time.monotonic() - began,
            folder=os.path.basename(folder),
        )


def _check(question: DocumentQuestion) -> None:
    if detect_launcher() != "none":
        raise UserError("dlemu reproduce was started by mpirun, srun or torchrun: start it once, without a launcher")
    if not question.drives:
        raise UserError("wanted drives=FOLDER[,FOLDER]: a folder on each of the storages to compare")
    for drive in question.drives:
        if not os.path.isdir(drive) or not os.access(drive, os.W_OK):
            raise UserError(f"{drive} is not a writable folder: wanted one on each of the storages to compare")
    for name, values in (("price", question.price), ("watts", question.watts)):
        if values and (len(values) != len(question.drives) or min(values) <= 0):
            raise UserError(f"--{name}: wanted a number above 0 for each of the {len(question.drives)} drives")


def _capacity_tb(drive: str) -> float | None:
    state = os.statvfs(drive)
    return state.f_blocks * state.f_frsize / 1e12 if state.f_blocks else None


def read_reproduced(folder: str) -> Reproduced | None:
    """Return what a folder holds of a document, None where it holds none; raises UserError for a damaged one."""
    return read_answer(folder, REPRODUCED, Reproduced)
