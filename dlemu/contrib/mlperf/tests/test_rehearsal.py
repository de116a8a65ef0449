"""A rehearsal's sequence and tree, with runs that take no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DlemuError, UserError
from datagen.inspection import Dataset
from datagen.layout import layouts
from datagen.manifest import Manifest
from datagen.owned import MARKER
from dlemu.comm import Interrupted
from dlemu.config import load
from dlemu.contrib.mlperf.check.judge import REHEARSAL, Checked, check_folder
from dlemu.contrib.mlperf.rehearsal import attempts
from dlemu.contrib.mlperf.rehearsal.attempts import Attempt, Attempts, Question, late_by
from dlemu.contrib.mlperf.rehearsal.datasize import datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import (
    copy_run,
    write_datagen,
    write_datasize,
    write_readme,
    write_sums,
    write_system,
)
from dlemu.contrib.mlperf.rehearsal.rehearse import DatagenFailed, Rehearsal, Rehearsed
from dlemu.contrib.mlperf.rehearsal.run_figures import Figures, RehearsalPlan, read_figures, sum_up
from dlemu.contrib.mlperf.rules.editions import RUN_FOLDERS
from dlemu.dlio.export import export_beside
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.run import TRAINING
from dlemu.results.finding import Finding, Located
from dlemu.runner.job import save as save_run
from dlemu.runner.run_list import RunEnded
from tests.run.studies import Children
from tests.runs import make_log

LAPTOP = {"dataset.size", "dataset.made", "dataset.phases", "settings.changed", "overrides.unknown", "hosts.few"}
LAPTOP |= {"runs.overlap", "workload.differs", "dataset.filesystem", "au.low"}
"""What is true of a small dataset in the one temporary folder."""
ASKED = datetime(2026, 1, 2)
QUESTION = Question(
    overrides=(), launcher="", division="closed", organisation="acme", system="box", hosts=1, settings_digest=""
)
FIGURES = Figures(
    au_dlio_percent=95.0,
    samples_per_second=10.0,
    mib_per_second=1.0,
    au_threshold_percent=90.0,
    au_percent=None,
    ceiling_au_percent=None,
    limited_by=None,
    accelerators=2,
    hosts=1,
    memory_gib_per_host=64.0,
    num_files=96,
    start="",
    end="",
)
"""Of a run that was not run."""


def make_plan(folder: Path) -> RehearsalPlan:
    words = ["workload=unet3d", "accelerator=b200", "ranks=2", f"dataset.data_folder={folder / 'data'}"]
    words += ["dataset.num_files_train=96", "reader.batch_size=4", "train.epochs=2", "train.computation_time=0.05"]
    words += ["dataset.record_length_bytes_stdev=0", "workflow.checkpoint=false", "reader.read_threads=2"]
    (folder / "data").mkdir(exist_ok=True)
    return RehearsalPlan(
        division="closed",
        organisation="acme",
        system="box",
        workload=load(words),
        words=tuple(words),
        folder=str(folder / "out"),
    )


def run_by_hand(words: list[str], folder: str) -> None:
    """Leave a run's folder as `dlemu train` does."""
    workload = load(words)
    train, _ = layouts(workload.dataset)
    size = train.num_files * 1000
    found = Dataset(
        spec=workload.dataset,
        train=train,
        valid=None,
        manifest=None,
        max_file_bytes=1000,
        max_sample_bytes=1000,
        total_bytes=size,
    )
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
    """A clock that goes on by two seconds whenever it is looked at: less than a run takes."""
    moments: Iterator[datetime] = (datetime(2026, 1, 2, 3, 4) + timedelta(seconds=2 * number) for number in range(1000))
    return lambda: next(moments)


def rehearsal(plan: RehearsalPlan, run: Callable[[list[str], str], None] = run_by_hand) -> list[Attempt]:
    """What the command does, apart from what it prints."""

    def lay_out_run(event: object) -> None:
        if isinstance(event, RunEnded) and event.run.figures is not None:
            copy_run(plan, event.run)
            write_system(plan.submission, plan.system, event.run.figures.hosts, 64)
            write_sums(plan, event.answer.attempts)

    attempts = Attempts(plan, QUESTION, run, lay_out_run, minutes())
    attempts.resume()
    write_readme(plan)
    write_datasize(plan, datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=64), ASKED)
    manifest = Manifest(spec=plan.workload.dataset, complete=True, made_at="2026-01-01T00:00:00+00:00")
    write_datagen(plan, manifest, None, ASKED)
    attempts.run_missing()
    return attempts.runs


def told(folder: str) -> set[str]:
    return {one.finding.rule for one in check_folder(folder).findings if one.finding.severity != "info"}


def test_the_tree_breaks_no_rule_but_those_of_size(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    attempts = rehearsal(plan)
    seeds = [one.seed for one in attempts]
    assert len(set(seeds)) == len(seeds) == RUN_FOLDERS
    checked = check_folder(plan.folder)
    assert told(plan.folder) <= LAPTOP
    (result,) = checked.results
    assert (result.edition.name, result.division, len(result.measured)) == ("3.0", "closed", 5)
    assert [leaf.section("train")["seed"] for leaf in result.runs] == seeds
    assert all(leaf.run and leaf.run.recomputed.basis == "steps" for leaf in result.runs)
    overrides = {word.partition("=")[0] for leaf in result.runs for word in leaf.setup.overrides or ()}
    assert "++workload.dataset.num_files_train" in overrides
    assert "++workload.train.seed" not in overrides
    assert "rehearsal" in {one.finding.rule for one in checked.findings}
    for folder in Path(result.path).parents:  # what a submitter adds later is not told of a part of the tree either
        if folder.is_relative_to(checked.root):
            assert told(str(folder)) <= LAPTOP, folder


def test_every_tree_says_that_it_is_no_submission(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    rehearsal(plan)
    assert "is no submission" in " ".join((tmp_path / "out/tree/README.txt").read_text().split())
    for path in (*Path(plan.tree).rglob("*_metadata.json"), *Path(plan.tree).rglob("results.json")):
        assert "no submission" in json.loads(path.read_text())["rehearsal"]


def test_sums_are_those_of_the_measured_runs(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    measured = [one.figures for one in rehearsal(plan) if one.figures and one.label != "warm-up"]
    rates = [figures.samples_per_second for figures in measured]
    results = json.loads(next(Path(plan.tree).rglob("results.json")).read_text())
    mean = sum(rates) / 5
    assert results["train_throughput_mean_samples_per_second"] == pytest.approx(mean)
    spread = (sum((rate - mean) ** 2 for rate in rates) / 5) ** 0.5
    assert results["train_throughput_stdev_samples_per_second"] == pytest.approx(spread)
    assert sum_up(measured).cov_percent == pytest.approx(100 * spread / mean)
    assert len(results["runs"]) == 6


@pytest.mark.parametrize(
    ("au", "ceiling", "rules", "judged"),
    [
        (95.0, 99.0, [], "pass"),
        (80.0, 99.0, ["au.low"], "fail"),
        (80.0, 85.0, ["au.low"], "no verdict"),
        (80.0, 85.0, ["au.low", "dataset.size"], "fail"),
        (95.0, 99.0, ["dataset.size"], "fail"),
    ],
)
def test_a_host_that_alone_keeps_runs_from_passing_leaves_no_verdict(
    au: float, ceiling: float, rules: list[str], judged: str, tmp_path: Path
) -> None:
    attempts = rehearsal(make_plan(tmp_path))
    figures = next(one.figures for one in attempts if one.figures)
    run = replace(figures, au_dlio_percent=au, ceiling_au_percent=ceiling, au_threshold_percent=90.0)
    found = tuple(Located(finding=Finding("error", rule, "", "", ""), path="") for rule in rules)
    checked = Checked(root="", reading="published", results=(), submissions=(), rehearsal=None, findings=found)
    assert Rehearsed(outcome=sum_up([run] * 5), limits=(), checked=checked).judged == judged


def test_a_failed_run_is_told_and_repeated_and_finished_ones_are_kept(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    calls: list[str] = []

    def fail_third(words: list[str], folder: str) -> None:
        calls.append(folder)
        if len(calls) == 3:
            raise DlemuError("rank 1 died\nand more")
        run_by_hand(words, folder)

    with pytest.raises(DlemuError, match="rank 1 died"):
        rehearsal(plan, fail_third)
    assert told(plan.folder) >= {"runs.failed", "runs.count"}
    attempts = rehearsal(plan, fail_third)
    assert len(calls) == 7
    assert [one.label for one in attempts] == ["warm-up", *(f"run {number}" for number in (1, 2, 2, 3, 4, 5))]
    assert [one.failure is None for one in attempts] == [True, True, False, True, True, True, True]
    (failed,) = [one for one in check_folder(plan.folder).findings if one.finding.rule == "runs.failed"]
    assert "run 2 failed" in failed.finding.seen
    assert "rank 1 died" in failed.finding.seen
    assert (Path(plan.folder) / attempts[2].folder).is_dir()
    with pytest.raises(UserError, match="holds a finished rehearsal"):
        rehearsal(plan)


def test_a_rehearsal_that_goes_on_too_late_is_told(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    attempts = rehearsal(plan)
    last = datetime.strptime(attempts[-1].stamp, "%Y%m%d_%H%M%S")
    assert attempts[-1].figures is not None
    took = datetime.fromisoformat(attempts[-1].figures.end) - datetime.fromisoformat(attempts[-1].figures.start)
    assert late_by(attempts, last + took) is None
    assert late_by(attempts, last + 3 * took) == 3 * took
    assert late_by([], last) is None
    # 96 samples in batches of 4 on 2 ranks are 12 steps of 0.05 s, twice.
    assert plan.min_seconds_per_run == pytest.approx(1.2)
    few = replace(plan.workload, train=replace(plan.workload.train, total_training_steps=8))
    assert replace(plan, workload=few).min_seconds_per_run == pytest.approx(0.4)


def test_a_rehearsal_does_not_go_on_after_its_workload_file_has_changed(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    before = replace(QUESTION, overrides=plan.words, hosts=1, settings_digest="of other settings")
    Attempts(plan, before, run_by_hand, lambda _: None).save(complete=False)
    size = datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=64)
    again = Rehearsal(plan=plan, size=size, make=False, report=lambda _: None)
    with pytest.raises(UserError, match=r"with other settings \(the workload's file, .* changed\)"):
        again.run()


def test_a_mistake_is_no_failed_run(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)

    def mistaken(words: list[str], folder: str) -> None:
        raise UserError("no such thing")

    with pytest.raises(UserError, match="no such thing"):
        rehearsal(plan, mistaken)
    assert not (Path(plan.folder) / REHEARSAL).exists()
    assert [path.name for path in (Path(plan.folder) / "runs").iterdir()] == [MARKER]


def test_what_the_submitter_filled_in_stays(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    run_by_hand(list(plan.words), str(run))
    figures = read_figures(str(run))
    write_system(plan.submission, plan.system, figures.hosts, 64)
    path = Path(plan.submission) / "systems" / "box.yaml"
    assert "FILL IN" in path.read_text()
    path.write_text("mine")
    write_system(plan.submission, plan.system, 3, 64)
    assert path.read_text() == "mine"


def test_passing_is_by_dlios_au_and_not_by_dlemus(tmp_path: Path) -> None:
    run_by_hand([*make_plan(tmp_path).words, "metric.au=0.9"], str(tmp_path))
    figures: Any = read_figures(str(tmp_path))
    at = replace(figures, au_dlio_percent=90.0, au_percent=10.0, au_threshold_percent=90.0)
    assert at.passed
    assert not replace(at, au_dlio_percent=89.99, au_percent=100.0).passed


def test_a_dataset_that_cannot_be_made_ends_it_with_datagens_own_status(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    size = datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=64)
    mistaken = replace(plan, words=(*plan.words, "dataset.formatt=npz"))
    rehearsal = Rehearsal(plan=mistaken, size=size, make=True, report=lambda line: None)
    with pytest.raises(DatagenFailed) as failed:
        rehearsal.run()
    assert failed.value.exit_status == 2
    assert not (Path(plan.folder) / "tree").exists()


def test_files_that_leave_no_step_to_judge_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    one_step = replace(plan, workload=load([*plan.words, "dataset.num_files_train=8"]))
    size = datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=64)
    with pytest.raises(UserError, match=r"8 files are too few .* set dataset.num_files_train="):
        Rehearsal(plan=one_step, size=size, make=True, report=lambda line: None).run()
    assert not (tmp_path / "out").exists()


def test_names_are_those_that_the_rules_allow(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--org 'my lab'"):
        replace(make_plan(tmp_path), organisation="my lab")


def test_figures_are_those_of_dlios_files(tmp_path: Path) -> None:
    run_by_hand(list(make_plan(tmp_path).words), str(tmp_path))
    figures = read_figures(str(tmp_path))
    summary = json.loads((tmp_path / "dlio" / "summary.json").read_text())
    metric = summary["metric"]
    assert figures.au_dlio_percent == pytest.approx(metric["train_au_mean_percentage"], rel=1e-12)
    assert figures.samples_per_second == pytest.approx(metric["train_throughput_mean_samples_per_second"], rel=1e-12)
    assert figures.mib_per_second == pytest.approx(metric["train_io_mean_MB_per_second"], rel=1e-12)
    assert (figures.start, figures.end) == (summary["start"], summary["end"])
    assert (figures.accelerators, figures.num_files) == (summary["num_accelerators"], summary["num_files_train"])


def test_a_rehearsal_goes_on_with_as_many_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "read_figures", lambda folder: FIGURES)
    plan = replace(make_plan(tmp_path), folder=str(tmp_path / "rehearsal"))

    def on(hosts: int, children: Children) -> Attempts:
        asked = replace(QUESTION, hosts=hosts)
        return Attempts(plan, asked, lambda words, folder: children(), children.watch, minutes())

    first = Children()
    first.stops_at, first.error = 2, Interrupted(2)
    with pytest.raises(Interrupted):
        on(2, first).run_missing()
    on(2, Children()).resume()
    with pytest.raises(UserError, match="hosts was 2, is 3"):
        on(3, Children()).resume()
