"""A rehearsal's sequence and tree, with runs that take no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DatasetError, DlemuError, UserError
from datagen.inspection import Dataset
from datagen.layout import layouts
from dlemu.config import load
from dlemu.contrib.mlperf.check.judge import Checked, check_folder
from dlemu.contrib.mlperf.check.submission_tree import REHEARSAL
from dlemu.contrib.mlperf.rehearsal import rehearse
from dlemu.contrib.mlperf.rehearsal.datasize import datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import RehearsalPlan
from dlemu.contrib.mlperf.rehearsal.rehearse import (
    TrainingRehearsal,
    library_cores,
    read_figures,
)
from dlemu.contrib.mlperf.rules.editions import RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import by_rule
from dlemu.dlio.export import export_beside
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import TRAINING
from dlemu.runner.job import save as save_run
from tests.datasets import make_dataset
from tests.runs import make_log

LAPTOP = {"dataset.size", "dataset.made", "dataset.phases", "settings.changed", "overrides.unknown", "hosts.few"}
LAPTOP |= {"runs.overlap", "workload.differs", "dataset.filesystem", "au.low"}
"""What is true of a small dataset in the one temporary folder."""


def plan_of(words: Sequence[str], folder: Path, launcher: str = "") -> RehearsalPlan:
    return RehearsalPlan(
        organisation="acme",
        system="box",
        workload=load(words),
        words=tuple(words),
        folder=str(folder),
        launcher=launcher,
    )


def make_plan(folder: Path) -> RehearsalPlan:
    words = ["workload=unet3d", "accelerator=b200", "ranks=2", f"dataset.data_folder={folder / 'data'}"]
    words += ["dataset.num_files_train=96", "reader.batch_size=4", "train.epochs=2", "train.computation_time=0.05"]
    words += ["dataset.record_length_bytes_stdev=0", "workflow.checkpoint=false", "reader.read_threads=2"]
    (folder / "data").mkdir(exist_ok=True)
    return plan_of(words, folder / "out")


def run_by_hand(words: list[str], folder: str) -> None:
    """Leave a run's folder as `dlemu train` does."""
    workload = load(words)
    train, _ = layouts(workload.dataset)
    size = train.num_files * 1000
    limits: dict[str, Any] = {"max_file_bytes": 1000, "max_sample_bytes": 1000, "total_bytes": size}
    found = Dataset(spec=workload.dataset, train=train, valid=None, manifest=None, **limits)
    job = TrainingJob(
        workload=workload,
        ranks=workload.ranks,
        found=found,
        seed=workload.train.seed,
        folder=folder,
        started_at="2026-01-02T03:04:05+00:00",
    )
    (Path(folder) / "console.txt").write_text("a run\n")
    save_run(TRAINING, job, make_log(job, seed=workload.train.seed), export_beside)


def minutes() -> Callable[[], datetime]:
    """A clock that goes on whenever it is looked at, three times a run: by less than a run takes."""
    moments: Iterator[datetime] = (datetime(2026, 1, 2, 3, 4) + timedelta(seconds=0.6 * look) for look in range(1000))
    return lambda: next(moments)


def rehearsal(plan: RehearsalPlan) -> TrainingRehearsal:
    """One whose report nobody reads."""
    size = datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=64)
    return TrainingRehearsal(plan=plan, size=size, report=lambda line: None, now=minutes())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingRehearsal:
    """A finished rehearsal whose runs took no time."""
    monkeypatch.setattr(RehearsalPlan, "run", lambda self, words, folder, command: run_by_hand(words, folder))
    monkeypatch.setattr(rehearse, "inspect", lambda *_, **__: None)
    done = rehearsal(make_plan(tmp_path))
    done.run()
    return done


def told(folder: str) -> set[str]:
    return {one.rule for one in check_folder(folder).findings if one.severity != "info"}


def test_the_tree_breaks_no_rule_but_those_of_size(made: TrainingRehearsal) -> None:
    plan = made.plan
    checked = check_folder(plan.folder)
    assert told(plan.folder) <= LAPTOP
    (result,) = checked.results
    assert (result.edition.name, result.division, len(result.measured)) == ("3.0", "closed", 5)
    seeds = [leaf.section("train")["seed"] for leaf in result.runs]
    assert len(set(seeds)) == len(seeds) == RUN_FOLDERS
    assert all(leaf.run and leaf.run.recomputed.basis == "steps" for leaf in result.runs)
    overrides = {word.partition("=")[0] for leaf in result.runs for word in leaf.setup.overrides or ()}
    assert "++workload.dataset.num_files_train" in overrides
    assert "++workload.train.seed" not in overrides
    assert "rehearsal" in {one.rule for one in checked.findings}
    for folder in Path(result.path).parents:  # what a submitter adds later is not told of a part of the tree either
        if folder.is_relative_to(checked.root):
            assert told(str(folder)) <= LAPTOP, folder
    assert "is no submission" in " ".join((Path(plan.tree) / "README.txt").read_text().split())
    for path in (*Path(plan.tree).rglob("*_metadata.json"), *Path(plan.tree).rglob("results.json")):
        assert "no submission" in json.loads(path.read_text())["rehearsal"]
    with pytest.raises(UserError, match="holds a rehearsal already"):
        rehearsal(plan).run()


def test_sums_are_those_of_the_measured_runs(made: TrainingRehearsal) -> None:
    rates = [run.printed.samples_per_second or 0 for run in made.measured]
    results = json.loads(next(Path(made.plan.tree).rglob("results.json")).read_text())
    mean = sum(rates) / 5
    assert results["train_throughput_mean_samples_per_second"] == pytest.approx(mean)
    spread = (sum((rate - mean) ** 2 for rate in rates) / 5) ** 0.5
    assert results["train_throughput_stdev_samples_per_second"] == pytest.approx(spread)
    assert len(results["runs"]) == 6
    assert f"CoV {100 * spread / mean:.1f} %" in made.end(check_folder(made.plan.folder))[1][0]


@pytest.mark.parametrize(
    ("passes", "held_back", "rules", "judged"),
    [
        (True, False, [], 0),
        (False, False, ["au.low"], 1),
        (False, True, ["au.low"], 4),
        (False, True, ["au.low", "dataset.size"], 1),
        (True, False, ["dataset.size"], 1),
    ],
)
def test_a_host_that_alone_keeps_runs_from_passing_leaves_no_verdict(
    passes: bool, held_back: bool, rules: list[str], judged: int, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path)
    run_by_hand(list(plan.words), str(tmp_path))
    figures = read_figures(str(tmp_path))
    printed = replace(figures.printed, verdict="success" if passes else "fail")
    asked = rehearsal(plan)
    asked.measured += [replace(figures, printed=printed, held_back=held_back)] * 5
    found = tuple(by_rule(rule, "") for rule in rules)
    checked = Checked(root="", reading="published", findings=found)
    assert asked.end(checked)[0] == judged


def test_a_failed_run_is_on_record(tmp_path: Path, made: TrainingRehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: RehearsalPlan, words: list[str], folder: str, command: str) -> None:
        raise DlemuError("rank 1 died\nand more")

    monkeypatch.setattr(RehearsalPlan, "run", fail)
    plan = replace(made.plan, folder=str(tmp_path / "other"))
    with pytest.raises(DlemuError, match="rank 1 died"):
        rehearsal(plan).run()
    record = json.loads((tmp_path / "other" / REHEARSAL).read_text())
    assert [(call["label"], call["failure"]) for call in record["calls"]] == [("warm-up", "rank 1 died\nand more")]
    assert not record["complete"]
    assert "runs.count" in told(plan.folder)


def test_mistakes_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    with pytest.raises(DatasetError, match="dlemu datagen workload=unet3d"):
        rehearsal(plan).run()
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--org 'my lab'"):
        replace(plan, organisation="my lab")


def test_the_librarys_cores_are_measured_where_there_are_files(tmp_path: Path) -> None:
    workload = make_plan(tmp_path).workload
    assert library_cores(workload) is None
    cores = library_cores(replace(workload, dataset=make_dataset(tmp_path / "small")))
    assert cores is not None
    assert 0 < cores < 1
