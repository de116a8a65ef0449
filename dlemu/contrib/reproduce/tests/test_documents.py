"""Every document's steps are commands that dlemu takes, at both scales; and what is asked wrongly is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from datagen.registry import find
from dlemu.cli.probe import command as probe_command
from dlemu.config import load
from dlemu.config.points import check_points, points
from dlemu.contrib.reproduce import documents
from dlemu.contrib.reproduce.page import OpenedDocument, document_page
from dlemu.contrib.reproduce.run import DOCUMENTS, Reproduced, document_names, reproduce
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step
from dlemu.report.drawing import figures
from dlemu.report.figure_base import DESK


def asked(document: str, **settings: object) -> DocumentQuestion:
    drives = ("/mnt/a",) if document == "micron-9400" else ("/mnt/a", "/mnt/b")
    return DocumentQuestion(document=document, drives=drives, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["laptop", "full"])
@pytest.mark.parametrize("document", document_names())
def test_steps_are_commands(document: str, scale: str) -> None:
    module = document.replace("-", "_")
    question = asked(document, scale=scale, overrides=("reader.read_threads=2",))
    steps: list[Step] = find(DOCUMENTS, module, "steps")(question)
    assert len({step.name for step in steps}) == len(steps)
    overridden = []
    for step in steps:
        if step.command == "probe":
            assert probe_command.make_context("probe", list(step.words)).params["preset"] == document
            continue
        runs = points(step.words)
        if step.command == "pack":
            assert all("resize=256x256" in run.words for run in runs)
            continue
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
from dlemu.contrib.reproduce.figures._panels import grid
from dlemu.contrib.reproduce.page import Panel, panel_table
from dlemu.contrib.reproduce.steps import Step

TITLE, ABOUT = "Acme: random reads", "Their figure 1."


def steps(question):
    return [Step(name="probe-1", command="probe", words=(question.drives[0], "--size", "4k"), says="reads")]


def panels(opened):
    return [Panel("MB/s", "depth", {(drive, 1): 1.5 for drive in opened.drives})]


def tables(opened):
    yield panel_table("Figure 1", panels(opened), opened.drives)


def figures(opened, canvas):
    yield from grid("acme_reads", "Reads", "Of each drive.", panels(opened), opened, canvas)
"""


def test_a_further_document_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_1.py").write_text(SIXTH)
    monkeypatch.setattr(documents, "__path__", [*documents.__path__, str(tmp_path)])
    monkeypatch.setattr("dlemu.runner.child_run.run_commands", lambda commands, look: None)
    assert "acme-1" in document_names()
    answer, folder = reproduce(
        DocumentQuestion(document="acme-1", drives=(str(tmp_path),)), folder=str(tmp_path / "result")
    )
    assert (answer.complete, answer.title) == (True, "Acme: random reads")
    opened = OpenedDocument(folder, answer, {})
    assert document_page(opened).tables[0].rows == [["MB/s", "1.500"]]
    assert [name for name, _ in figures(opened, f"{DOCUMENTS}.acme_1", DESK)] == ["acme_reads"]


def test_a_result_names_no_document_that_is_not_here(tmp_path: Path) -> None:
    """What was received may name any module: none is imported."""
    answer = Reproduced(complete=True, title="T", about="A.", question=asked("os.path"))
    with pytest.raises(UserError, match=r"no document 'os\.path'"):
        document_page(OpenedDocument(str(tmp_path), answer, {}))


def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'kioxa': did you mean kioxia\?"):
        reproduce(asked("kioxa"))
    with pytest.raises(UserError, match="/mnt/a is not a writable folder"):
        reproduce(asked("kioxia"))
    question = DocumentQuestion(document="amax", drives=(str(tmp_path),), price=(1.0, 2.0))
    with pytest.raises(UserError, match="a number above 0 for each of the 1 drives"):
        reproduce(question)
    both = DocumentQuestion(document="micron-9400", drives=(str(tmp_path), str(tmp_path)))
    with pytest.raises(UserError, match="micron-9400 measures one drive"):
        reproduce(both)
    for document, word, said in [
        ("micron-9400", "ranks=2", "ranks is set by the document"),
        ("kioxia", "reader.read_threads=2,4", "has several values: wanted one"),
        ("colfax", "reader.read_threads=2", "colfax trains nothing: leave out reader.read_threads=2"),
    ]:
        with pytest.raises(UserError, match=said):
            reproduce(DocumentQuestion(document=document, drives=(str(tmp_path),), overrides=(word,)))
