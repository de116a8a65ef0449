"""What this part adds to the tests that walk all commands and results (`tests.parts`)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dlemu.contrib.reproduce import run
from dlemu.contrib.reproduce.document import DocumentQuestion, document_names
from dlemu.contrib.reproduce.run import REPRODUCED, Reproduced
from dlemu.results.answer_files import save_answer
from tests.e2e.harness import DLEMU
from tests.run.studies import Children, Study

REPRODUCE = ("reproduce", "amax", "drives=.")


def answer(folder: Path) -> Path:
    question = DocumentQuestion(document="amax", drives=("/mnt/a",))
    made = Reproduced(complete=True, question=question)
    save_answer(str(folder), REPRODUCED, made)
    return folder / REPRODUCED


def colfax(sources: Path, folder: Path) -> list[str]:
    drive = Path(f"{folder}-drive")
    drive.mkdir(exist_ok=True)
    return [DLEMU, "reproduce", "colfax", f"drives={drive}", f"output.folder={folder}", "--no-report"]


def reproduce(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    patch.setattr("dlemu.runner.child_run.run_commands", lambda *_, **__: children())
    drives = tuple(str(folder.parent / drive) for drive in "abc")
    for drive in drives:
        os.makedirs(drive, exist_ok=True)
    asked = DocumentQuestion(document="micron-6550", drives=drives, watts=(float(len(word)),) * len(drives))
    return run.reproduce(asked, folder=str(folder), on_event=children.watch)


ANSWERS = {"document": answer}
FILES = {
    "the answer of document": (f"document/{REPRODUCED}", ("report", "document")),
    "a document that goes on": (f"document/{REPRODUCED}", (*REPRODUCE, "output.folder=document")),
}
FOLDERS = {"results of a document": ("place", (*REPRODUCE, "output.folder=place"))}
MORE_COMMANDS = {"reproduce": colfax}
MANY_RUNS = {"reproduce": True}
ENDS = {"reproduce": signal.SIGKILL}
CHEAPEST = {"reproduce": lambda folder: (["kioxia"], 2, "")}
NO_TEXT = {"reproduce": ["reproduce", "colfax", "drives=\udce4"]}
COMPOSED = {"reproduce": lambda words: set(document_names()) & set(words)}
STUDIES = {"reproduce": Study(reproduce, REPRODUCED, "document")}
