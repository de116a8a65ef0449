"""Each study is a list of child runs: interrupted it goes on with the others, and one that failed is on record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import dlemu
from datagen.errors import DlemuError, UserError
from dlemu.comm import Interrupted
from dlemu.contrib.mlperf.check.judge import REHEARSAL
from dlemu.contrib.mlperf.rehearsal import attempts
from dlemu.contrib.mlperf.rehearsal.run_figures import Figures
from dlemu.contrib.mlperf.tests.test_rehearsal import QUESTION, make_plan, minutes
from dlemu.contrib.pack import run as run_pack
from dlemu.contrib.pack.result import PACK, PackFigures
from dlemu.contrib.pack.tests.made_packing import packing
from dlemu.contrib.reproduce import run as run_reproduce
from dlemu.contrib.reproduce.run import REPRODUCED
from dlemu.contrib.reproduce.steps import DocumentQuestion
from dlemu.jobs.training.run import Training
from dlemu.results.figures import JobFigures, Value
from dlemu.runner.run_list import RunBegan, RunEnded
from dlemu.studies.answers import SIZE, SWEEP, Trial
from dlemu.studies.size.find_size import Search
from dlemu.studies.size.search import Limits
from dlemu.studies.sweep import run as run_sweep
from tests.sizing.fakes import DEMAND, FakeRunner, known, question

MEASURED: dict[str, Any] = {
    "au_dlio_percent": 95.0,
    "samples_per_second": 10.0,
    "mib_per_second": 1.0,
    "au_threshold_percent": 90.0,
    "au_percent": None,
    "ceiling_au_percent": None,
    "limited_by": None,
    "accelerators": 2,
    "hosts": 1,
    "memory_gib_per_host": 64.0,
    "num_files": 96,
    "start": "",
    "end": "",
}


@dataclass
class Children:
    """Child runs that take no time."""

    labels: list[str] = field(default_factory=list)
    """Of those that began."""
    stops_at: int = 0
    """The one that ends in `error`, from 1."""
    error: BaseException | None = None

    def watch(self, event: object) -> None:
        if isinstance(event, RunBegan):
            self.labels.append(event.label)

    def __call__(self) -> None:
        if self.error is not None and len(self.labels) == self.stops_at:
            raise self.error


Study = Callable[[Path, Children, str, pytest.MonkeyPatch], object]
"""Runs a study in a folder, with children instead of processes; with another word its question is another."""


def sweep(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    patch.setattr(Training, "look_at_points", lambda _: lambda _: None)
    patch.setattr(run_sweep, "run_train", lambda *_: children())
    figures = JobFigures(
        kind="training", workload="unet3d", ranks=1, epochs=1, passed=True, metrics={"total_seconds": Value(1.0)}
    )
    patch.setattr(run_sweep, "read_figures", lambda folder: (None, figures))
    words = ["workload=unet3d", "accelerator=h100", f"model.name={word}", "ranks=1,2,3", f"output.folder={folder}"]
    return dlemu.sweep(words, on_progress=children.watch)


def pack(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    figures = packing("images").points[0].figures

    def run_here(*_: object, **__: object) -> PackFigures:
        children()
        assert figures is not None
        return figures

    patch.setattr(run_pack, "pack_here", run_here)
    source = folder.parent / "images"
    words = [f"source={source}", f"target={source}/{word}", "processes=1,2,3", f"output.folder={folder}"]
    return run_pack.pack(words, on_event=children.watch)


def size(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    class Storage(FakeRunner):
        def run(self, accelerators: int, number: int, folder: str) -> Trial:
            children()
            return replace(super().run(accelerators, number, folder), folder=os.path.basename(folder))

    runs = Search(str(folder), question(workload=word), (), children.watch)
    runs.resume()
    runs.search(known(), Limits(first=16, most=4096), Storage(16.4 * 0.9 * DEMAND))
    return runs.save(complete=True)


def reproduce(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    patch.setattr("dlemu.runner.child_run.run_commands", lambda *_, **__: children())
    drives = tuple(str(folder.parent / drive) for drive in "abc")
    for drive in drives:
        os.makedirs(drive, exist_ok=True)
    asked = DocumentQuestion(document="micron-6550", drives=drives, watts=(float(len(word)),) * len(drives))
    return run_reproduce.reproduce(asked, folder=str(folder), on_event=children.watch)


def rehearse(folder: Path, children: Children, word: str, patch: pytest.MonkeyPatch) -> object:
    patch.setattr(attempts, "read_figures", lambda folder: Figures(**MEASURED))
    plan = replace(make_plan(folder.parent), folder=str(folder))
    asked = replace(QUESTION, system=word)
    runs = attempts.Attempts(plan, asked, lambda words, folder: children(), children.watch, minutes())
    runs.resume()
    return runs.run_missing()


STUDIES = [
    pytest.param(sweep, SWEEP, "sweep", id="sweep"),
    pytest.param(pack, PACK, "packing", id="pack"),
    pytest.param(size, SIZE, "search", id="size"),
    pytest.param(reproduce, REPRODUCED, "document", id="reproduce"),
    pytest.param(rehearse, REHEARSAL, "rehearsal", id="rehearse"),
]


@pytest.mark.parametrize(("study", "file", "noun"), STUDIES)
def test_an_interrupted_study_goes_on_with_the_others(
    study: Study, file: str, noun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Children()
    study(tmp_path / "whole", whole, "box", monkeypatch)
    runs = len(whole.labels)
    assert runs >= 3
    for done in range(1, runs):
        folder, first, others = tmp_path / f"after-{done}", Children(), Children()
        first.stops_at, first.error = done + 1, Interrupted(2)
        with pytest.raises(Interrupted):
            study(folder, first, "box", monkeypatch)
        assert first.labels == whole.labels[: done + 1]
        assert not json.loads((folder / file).read_text())["complete"]
        with pytest.raises(UserError, match=f"holds an interrupted {noun} with other settings .* was .*, is "):
            study(folder, Children(), "shelf", monkeypatch)
        study(folder, others, "box", monkeypatch)
        assert others.labels == whole.labels[done:]
        assert json.loads((folder / file).read_text())["complete"]
        with pytest.raises(UserError, match=f"holds a finished {noun}; set output.folder to a new folder"):
            study(folder, Children(), "box", monkeypatch)


def test_a_study_does_not_go_on_after_its_workload_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its overrides are the same, but figures of two workloads must not be mixed."""
    file, folder = tmp_path / "own.yaml", tmp_path / "study"
    file.write_text("reader: {batch_size: 4}\n")

    def start(children: Children) -> object:
        monkeypatch.setattr(Training, "look_at_points", lambda _: lambda _: None)
        monkeypatch.setattr(run_sweep, "run_train", lambda *_: children())
        monkeypatch.setattr(run_sweep, "read_figures", lambda folder: (None, None))
        return dlemu.sweep([f"workload={file}", "ranks=1,2,3", f"output.folder={folder}"], on_progress=children.watch)

    first, others = Children(), Children()
    first.stops_at, first.error = 2, Interrupted(2)
    with pytest.raises(Interrupted):
        start(first)
    file.write_text("reader: {batch_size: 2}\n")
    with pytest.raises(UserError, match=r"with other settings \(the workload's file, .* changed\)"):
        start(Children())
    file.write_text("reader: {batch_size: 4}\n")
    start(others)
    assert others.labels == ["ranks=2", "ranks=3"]


@pytest.mark.parametrize(("study", "file", "noun"), STUDIES)
def test_a_study_does_not_run_where_another_process_runs_one(
    study: Study, file: str, noun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock is that of an open file: a second descriptor in this process is as good as another process."""
    folder, first, second = tmp_path / "study", Children(), Children()
    refused: list[str] = []

    watch = first.watch

    def again(event: object) -> None:
        watch(event)
        if isinstance(event, RunEnded) and not refused:
            with pytest.raises(UserError, match=f"is in use by a {noun} that another process runs") as caught:
                study(folder, second, "box", monkeypatch)
            refused.append(str(caught.value))

    monkeypatch.setattr(first, "watch", again)
    study(folder, first, "box", monkeypatch)
    assert refused
    assert not second.labels


@pytest.mark.parametrize(("study", "file", "noun"), STUDIES)
def test_a_failed_run_is_run_again(
    study: Study, file: str, noun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first, others = tmp_path / "study", Children(stops_at=2, error=DlemuError("rank 1 died")), Children()
    goes_on = study in (sweep, pack)
    if goes_on:
        study(folder, first, "box", monkeypatch)
    else:
        with pytest.raises(DlemuError, match="rank 1 died"):
            study(folder, first, "box", monkeypatch)
    assert len(first.labels) == (3 if goes_on else 2)
    assert ("rank 1 died" in (folder / file).read_text()) == (study in (sweep, pack, rehearse))
    study(folder, others, "box", monkeypatch)
    assert others.labels[0] == first.labels[1]
    assert first.labels[0] not in others.labels
    assert (len(others.labels) == 1) == goes_on
    assert ("rank 1 died" in (folder / file).read_text()) == (study == rehearse), "an attempt stays on record"


def test_a_rehearsal_goes_on_with_as_many_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "read_figures", lambda folder: Figures(**MEASURED))
    plan = replace(make_plan(tmp_path), folder=str(tmp_path / "rehearsal"))

    def on(hosts: int, children: Children) -> attempts.Attempts:
        asked = replace(QUESTION, hosts=hosts)
        return attempts.Attempts(plan, asked, lambda words, folder: children(), children.watch, minutes())

    first = Children()
    first.stops_at, first.error = 2, Interrupted(2)
    with pytest.raises(Interrupted):
        on(2, first).run_missing()
    on(2, Children()).resume()
    with pytest.raises(UserError, match="hosts was 2, is 3"):
        on(3, Children()).resume()
