"""Every document's steps are commands that dlemu takes, at both scales; and what is asked wrongly is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.cli.probe import command as probe_command
from dlemu.config import load
from dlemu.config.overrides import check_points, points
from dlemu.contrib.reproduce.document import DocumentQuestion, document_named, document_names
from dlemu.contrib.reproduce.page import sections
from dlemu.contrib.reproduce.run import Reproduced, reproduce


@pytest.mark.parametrize("scale", ["laptop", "full"])
@pytest.mark.parametrize("name", document_names())
def test_steps_are_commands(name: str, scale: Any) -> None:
    drives = ("/mnt/a", "/mnt/b")
    question = DocumentQuestion(document=name, drives=drives, scale=scale, overrides=("reader.read_threads=2",))
    steps = list(document_named(name).plan(question))
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        if step.command == "probe":
            requests = probe_command.make_context("probe", list(step.words)).params
            depths, jobs = {"amax": ((32,), ()), "micron-6550": ((1,), tuple(2**k for k in range(10)))}[name]
            assert (requests["depths"], requests["jobs"]) == (depths, jobs)
            continue
        runs = points(step.words)
        if step.command == "sweep":
            check_points(runs)
        else:
            assert len(runs) == 1
        for workload in (load(runs[0].words), load(runs[-1].words)):
            assert step.command == "datagen" or workload.reader.read_threads == 2
            assert workload.dataset.data_folder.rpartition("/")[0] in drives


def test_a_result_names_no_document_that_is_not_here(tmp_path: Path) -> None:
    """What was received may name any file: none is read."""
    for name in ("os.path", "../reproduce/documents/amax", "/etc/passwd"):
        answer = Reproduced(complete=True, question=DocumentQuestion(document=name, drives=()))
        with pytest.raises(UserError, match="no document '"):
            list(sections(answer, str(tmp_path)))


@pytest.mark.parametrize(
    ("document", "settings", "said"),
    [
        ("kioxa", {}, r"'kioxa': wanted one of .*kioxia"),
        ("kioxia", {"drives": ("/mnt/a",)}, "/mnt/a is not a writable folder"),
        ("amax", {"price": (1.0, 2.0)}, "a number above 0 for each of the 1 drives"),
        ("amax", {"watts": (float("nan"),)}, "a number above 0 for each of the 1 drives"),
        ("micron-9400", {"overrides": ("ranks=2",)}, "ranks is set by the document"),
        ("kioxia", {"overrides": ("accelerator=h100",)}, "accelerator is set by the document"),
        ("kioxia", {"overrides": ("reader.read_threads=2,4",)}, "has several values: wanted one"),
        ("micron-6550", {"overrides": ("a=2",)}, "micron-6550 trains nothing: leave out a=2"),
    ],
)
def test_what_is_asked_wrongly(document: str, settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        reproduce(DocumentQuestion(document=document, **{"drives": (str(tmp_path),)} | settings))
