"""Each study is a list of child runs: interrupted it goes on with the others, and one that failed is on record."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import dlemu
from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.jobs.training.result import Training
from dlemu.ranks import Interrupted
from dlemu.results.figures import JobFigures, Value
from dlemu.runner.run_folder import check_run_folder, make_folder
from dlemu.runner.run_list import RunEnded
from dlemu.studies.answers import SIZE, SWEEP, Trial
from dlemu.studies.size.find_size import Search
from dlemu.studies.sweep import run as run_sweep
from tests.parts import of_parts
from tests.run.studies import Children, Study
from tests.runs import make_job, make_log, make_run, write_run
from tests.sizing.fakes import DEMAND, FakeRunner, known, question


def sweep(
    folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch, workload: str = "workload=default"
) -> object:
    patch.setattr(Training, "look_at_points", lambda _: lambda _: None)
    patch.setattr(run_sweep, "run_train", lambda *_: children())
    figures = JobFigures(
        kind="training", workload="unet3d", ranks=1, epochs=1, outcome="pass", metrics={"total_seconds": Value(1.0)}
    )
    patch.setattr(run_sweep, "read_figures", lambda folder: (None, figures))
    words = [workload, f"model.name={word}", "ranks=1,2,3", f"output.folder={folder}"]
    return dlemu.sweep(words, on_progress=children.watch)


def size(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    class Storage(FakeRunner):
        def __call__(self, accelerators: int, number: int, folder: str) -> Trial:
            children()
            return replace(super().__call__(accelerators, number, folder), folder=os.path.basename(folder))

    runs = Search(str(folder), question(workload=word), (), children.watch)
    runs.resume()
    runs.search(known(), 16, Storage(16.4 * 0.9 * DEMAND))
    return runs.save(complete=True)


STUDIES = {
    "sweep": Study(sweep, SWEEP, "sweep", goes_on=True),
    "size": Study(size, SIZE, "search"),
    **of_parts("STUDIES"),
}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_an_interrupted_study_goes_on_with_the_others(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Children()
    study.run(tmp_path / "whole", whole, "box", monkeypatch)
    runs = len(whole.labels)
    assert runs >= 3
    for done in range(1, runs):
        folder, first, others = tmp_path / f"after-{done}", Children(), Children()
        first.stops_at, first.error = done + 1, Interrupted(15)
        with pytest.raises(Interrupted):
            study.run(folder, first, "box", monkeypatch)
        assert first.labels == whole.labels[: done + 1]
        assert not json.loads((folder / study.file).read_text())["complete"]
        with pytest.raises(UserError, match=f"holds an interrupted {study.noun} with other settings .* was .*, is "):
            study.run(folder, Children(), "shelf", monkeypatch)
        study.run(folder, others, "box", monkeypatch)
        assert others.labels == whole.labels[done:]
        assert json.loads((folder / study.file).read_text())["complete"]
        with pytest.raises(UserError, match=f"holds a finished {study.noun}; set output.folder to a new folder"):
            study.run(folder, Children(), "box", monkeypatch)


def test_a_study_does_not_go_on_after_its_workload_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its overrides are the same, but figures of two workloads must not be mixed."""
    file, folder = tmp_path / "own.yaml", tmp_path / "study"
    file.write_text("reader: {batch_size: 4}\n")

    def start(children: Children) -> object:
        return sweep(folder, children, "mine", monkeypatch, f"workload={file}")

    first, others = Children(), Children()
    first.stops_at, first.error = 2, Interrupted(15)
    with pytest.raises(Interrupted):
        start(first)
    file.write_text("reader: {batch_size: 2}\n")
    with pytest.raises(UserError, match=r"with other settings \(the workload's file, .* changed\)"):
        start(Children())
    file.write_text("reader: {batch_size: 4}\n")
    start(others)
    assert others.labels == ["ranks=2", "ranks=3"]


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_study_does_not_run_where_another_process_runs_one(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock is that of an open file: a second descriptor in this process is as good as another process."""
    folder, first, second = tmp_path / "study", Children(), Children()
    refused, watch = list[str](), first.watch

    def again(event: object) -> None:
        watch(event)
        if isinstance(event, RunEnded) and not refused:
            with pytest.raises(UserError, match=f"is in use by a {study.noun} that another process runs") as caught:
                study.run(folder, second, "box", monkeypatch)
            refused.append(str(caught.value))

    monkeypatch.setattr(first, "watch", again)
    study.run(folder, first, "box", monkeypatch)
    assert refused
    assert not second.labels


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_study_and_a_run_do_not_share_a_folder(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, children = make_job(folder=str(tmp_path / "run")), Children()
    make_folder(job.folder, job.ranks)
    write_run(make_run(job, make_log(job)))
    with pytest.raises(UserError, match=r"holds another result, a training run; set output\.folder to a new folder"):
        study.run(tmp_path / "run", children, "box", monkeypatch)
    assert not children.labels
    study.run(tmp_path / "study", children, "box", monkeypatch)
    with pytest.raises(SpaceError, match=r"holds another result; set output\.folder to a new folder"):
        check_run_folder(str(tmp_path / "study"))


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_failed_run_is_run_again(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, first, others = tmp_path / "study", Children(stops_at=2, error=DlemuError("rank 1 died")), Children()
    if study.goes_on:
        study.run(folder, first, "box", monkeypatch)
    else:
        with pytest.raises(DlemuError, match="rank 1 died"):
            study.run(folder, first, "box", monkeypatch)
    assert len(first.labels) == (3 if study.goes_on else 2)
    assert ("rank 1 died" in (folder / study.file).read_text()) == study.goes_on
    study.run(folder, others, "box", monkeypatch)
    assert others.labels[0] == first.labels[1]
    assert first.labels[0] not in others.labels
    assert (len(others.labels) == 1) == study.goes_on
    assert "rank 1 died" not in (folder / study.file).read_text()
