"""The steps of a document one after another, each a command of dlemu; reproduce.json says where their results lie."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from datagen.errors import UserError
from datagen.owned import fresh_folder, take_folder
from datagen.registry import find, names, nearest
from dlemu.comm import detect_launcher
from dlemu.config.published import without_secrets
from dlemu.metrics.verdict import COMPLETED
from dlemu.packing.pack_answer import PACK
from dlemu.probing.probe_answers import PROBE
from dlemu.reproduction.steps import Command, DocumentQuestion, Step
from dlemu.results.answer_files import ANSWER_VERSION, read_answer, save_answer
from dlemu.run.run_folder import check_place, new_folder
from dlemu.sizing.answers import SWEEP, check_same
from dlemu.sizing.train_process import run_command

REPRODUCED = "reproduce.json"
_DOCUMENTS = "dlemu.reproduction.documents"
_RESULTS: dict[Command, str] = {"datagen": "", "train": "summary.json", "sweep": SWEEP, "pack": PACK, "probe": PROBE}


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
    """A document made again: reproduce.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    title: str
    about: str
    question: DocumentQuestion
    capacity_tb: tuple[float | None, ...] = ()
    """Of the file system of each drive, 1e12 bytes."""
    steps: tuple[StepDone, ...] = ()


def document_names() -> list[str]:
    """Return the documents by the names that users write."""
    return [name.replace("_", "-") for name in names(_DOCUMENTS)]


def reproduce(
    question: DocumentQuestion,
    *,
    folder: str = "",
    config_dir: str | None = None,
    on_step: Callable[[int, int, Step], None] = lambda _number, _of, _step: None,
    on_begin: Callable[[str], None] = lambda _folder: None,
) -> tuple[Reproduced, str]:
    """Run what makes a document's figures and tables; return where they are, and their folder.

    An interrupted one goes on when it is called with the same question and its folder. Datasets stay on the drives,
    below folders named by their workloads. Raises UserError, DlemuError.
    """
    module = question.document.replace("-", "_")
    if module not in names(_DOCUMENTS):
        hint = nearest(question.document, document_names())
        raise UserError(
            f"there is no document {question.document!r}: {hint}wanted one of {', '.join(document_names())}"
        )
    _check(question)
    public = replace(question, overrides=tuple(without_secrets(question.overrides)))
    folder = folder or new_folder("reproduce", f"{question.document}-")
    check_place(folder, ours=(REPRODUCED,))
    saved = read_answer(folder, REPRODUCED, Reproduced)
    if saved is not None and saved.complete:
        raise UserError(f"{folder} holds a finished document; name a new folder, or see its page by `dlemu report`")
    if saved is not None:
        check_same(folder, asdict(saved.question), asdict(public))
    on_begin(folder)
    steps: list[Step] = find(_DOCUMENTS, module, "steps")(question)
    done = list(saved.steps) if saved is not None else []
    for number, step in enumerate(steps, start=1):
        if step.name not in {one.name for one in done}:
            on_step(number, len(steps), step)
            done.append(_run(step, folder, config_dir))
        answer = Reproduced(
            complete=number == len(steps),
            title=find(_DOCUMENTS, module, "TITLE"),
            about=find(_DOCUMENTS, module, "ABOUT"),
            question=public,
            capacity_tb=tuple(_capacity_tb(drive) for drive in question.drives),
            steps=tuple(done),
        )
        save_answer(folder, REPRODUCED, answer)
    return answer, folder


def _check(question: DocumentQuestion) -> None:
    if detect_launcher() == "mpi":
        raise UserError("dlemu reproduce was started by mpirun or srun: start it once, without")
    if not question.drives:
        raise UserError("wanted drives=FOLDER[,FOLDER]: a folder on each of the storages to compare")
    for drive in question.drives:
        if not os.path.isdir(drive) or not os.access(drive, os.W_OK):
            raise UserError(f"{drive} is no folder that can be written: wanted one on each of the storages to compare")
    for name, values in (("price", question.price), ("watts", question.watts)):
        if values and (len(values) != len(question.drives) or min(values) <= 0):
            raise UserError(f"--{name}: wanted a number above 0 for each of the {len(question.drives)} drives")


def _run(step: Step, parent: str, config_dir: str | None) -> StepDone:
    """Run one command, as a user would; raises with its own message."""
    if step.command in ("sweep", "pack"):  # these go on where they were interrupted
        folder = os.path.join(parent, step.name)
        take_folder(folder, "--output")
    else:
        folder = fresh_folder(parent, step.name)
    command = [sys.executable, "-m", "dlemu", step.command, *step.words]
    if config_dir is not None and step.command != "probe":
        command += ["--config-dir", config_dir]
    match step.command:
        case "probe":
            command += ["--output", folder, "--json"]
        case "pack":
            command += [f"output.folder={folder}", "--no-report"]
        case "train" | "sweep":
            command += [f"output.folder={folder}", "output.report=false"]
    began = time.monotonic()
    done = COMPLETED if step.command == "train" else (0,)
    run_command(command, folder, lambda: None, _RESULTS[step.command], done=done)
    return StepDone(
        name=step.name,
        command=step.command,
        words=tuple(without_secrets(step.words)),
        seconds=time.monotonic() - began,
        folder=os.path.basename(folder),
    )


def _capacity_tb(drive: str) -> float | None:
    state = os.statvfs(drive)
    return state.f_blocks * state.f_frsize / 1e12 if state.f_blocks else None
