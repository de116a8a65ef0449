"""Every document's steps are commands that dlemu takes, at both scales; and what is asked wrongly is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.cli.probe import command as probe_command
from dlemu.config import load
from dlemu.config.overrides import check_points, points
from dlemu.contrib.reproduce import document
from dlemu.contrib.reproduce.document import DocumentQuestion, document_named, document_names
from dlemu.contrib.reproduce.figures import figures
from dlemu.contrib.reproduce.page import tables_of
from dlemu.contrib.reproduce.rows import OpenedDocument
from dlemu.contrib.reproduce.run import Reproduced, reproduce
from tests.results.made_probe import probed


def asked(document: str, **settings: object) -> DocumentQuestion:
    return DocumentQuestion(document=document, drives=("/mnt/a", "/mnt/b"), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["laptop", "full"])
@pytest.mark.parametrize("name", document_names())
def test_steps_are_commands(name: str, scale: str) -> None:
    question = asked(name, scale=scale, overrides=("reader.read_threads=2",))
    steps = list(document_named(name).plan(question))
    assert len({step.name for step in steps}) == len(steps)
    overridden = []
    for step in steps:
        if step.command == "probe":
            assert probe_command.make_context("probe", list(step.words)).params["preset"] == name
            continue
        runs = points(step.words)
        workloads = [load(run.words) for run in (runs[0], runs[-1])]
        if step.command == "sweep":
            check_points(runs)
        else:
            assert len(runs) == 1
        if step.command != "datagen":
            overridden += [workload.reader.read_threads for workload in workloads]
        folders = {workload.dataset.data_folder.rpartition("/")[0] for workload in workloads}
        assert folders <= {"/mnt/a", "/mnt/b"}
    assert set(overridden) <= {2}


SIXTH = """
title: "Acme: random reads"
about: Their figure 1.
steps:
  - {name: probe, command: probe, says: "reads of {drive}", words: [--size, 4k]}
tables:
  - {title: Figure 1, of: probe, across: {depth: workers}, values: {MB/s: mb_per_second}, figure: acme_reads}
"""


def test_a_further_document_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme-1.yaml").write_text(SIXTH)
    monkeypatch.setattr(document, "FOLDER", str(tmp_path))
    monkeypatch.setattr("dlemu.runner.child_run.run_commands", lambda commands, look: None)
    assert document_names() == ["acme-1"]
    answer, folder = reproduce(
        DocumentQuestion(document="acme-1", drives=(str(tmp_path),)), folder=str(tmp_path / "result")
    )
    assert (answer.complete, answer.title) == (True, "Acme: random reads")
    opened = OpenedDocument(folder, answer, {"probe-1": probed()})
    assert next(tables_of(opened)).title == "Figure 1"
    assert [name for name, _ in figures(opened)] == ["acme_reads"]


def test_a_result_names_no_document_that_is_not_here(tmp_path: Path) -> None:
    """What was received may name any file: none is read."""
    for name in ("os.path", "../reproduce/documents/amax", "/etc/passwd"):
        answer = Reproduced(complete=True, title="T", about="A.", question=asked(name))
        with pytest.raises(UserError, match="no document '"):
            list(tables_of(OpenedDocument(str(tmp_path), answer, {})))


def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'kioxa': wanted one of .*kioxia"):
        reproduce(asked("kioxa"))
    with pytest.raises(UserError, match="/mnt/a is not a writable folder"):
        reproduce(asked("kioxia"))
    question = DocumentQuestion(document="amax", drives=(str(tmp_path),), price=(1.0, 2.0))
    with pytest.raises(UserError, match="a number above 0 for each of the 1 drives"):
        reproduce(question)
    for name, word, said in [
        ("micron-9400", "ranks=2", "ranks is set by the document"),
        ("kioxia", "reader.read_threads=2,4", "has several values: wanted one"),
        ("micron-6550", "reader.read_threads=2", "micron-6550 trains nothing: leave out reader.read_threads=2"),
    ]:
        with pytest.raises(UserError, match=said):
            reproduce(DocumentQuestion(document=name, drives=(str(tmp_path),), overrides=(word,)))
