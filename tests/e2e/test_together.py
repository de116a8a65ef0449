"""Jobs side by side: each has its own result, and the answer says what the others cost it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dlemu.report.table import print_table
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import RunsQuestion
from dlemu.studies.together import TOGETHER, MeasuredJob, Together, overlap_percent, screen, sections, verdict_of
from tests.e2e.harness import dlemu as run_dlemu
from tests.e2e.harness import small_run, without


@pytest.mark.parametrize(
    ("own", "others", "percent"),
    [
        ((0.0, 10.0), [(0.0, 10.0)], 100.0),
        ((0.0, 10.0), [(5.0, 20.0)], 50.0),
        ((0.0, 10.0), [(0.0, 4.0), (2.0, 6.0)], 60.0),
        ((0.0, 10.0), [(-5.0, 1.0), (9.0, 12.0)], 20.0),
        ((0.0, 10.0), [(11.0, 12.0)], 0.0),
        ((5.0, 5.0), [(0.0, 10.0)], 0.0),
    ],
)
def test_the_share_of_time_with_others_is_counted_once(
    own: tuple[float, float], others: list[tuple[float, float]], percent: float
) -> None:
    assert overlap_percent(own, others) == pytest.approx(percent)


Metric = tuple[str, str]
"""Name of a metric, and its kind of job."""
RATE, TIME = ("samples_per_second", "training"), ("total_seconds", "training")
WRITING = ("write_slowest_seconds", "checkpoint")


def measured(metric: Metric, value: float, half: float | None) -> MeasuredJob:
    name, kind = metric
    return MeasuredJob(
        folder="x", figures=JobFigures(kind=kind, workload="w", ranks=1, metrics={name: Value(value, half)})
    )


def answer_of(jobs: list[tuple[Metric, float, float, float | None]]) -> Together:
    """Return an answer of jobs with a metric alone and together, and its half width."""
    alone = [{n: measured(of, value, half)} for n, (of, value, _, half) in enumerate(jobs)]
    together = {n: measured(of, value, half) for n, (of, _, value, half) in enumerate(jobs)}
    question = RunsQuestion(overrides=("train",) * len(jobs), settings_digest="")
    turns = (*alone, together)
    answer = Together(complete=True, question=question, turns=turns)
    return replace(answer, verdict=verdict_of(answer))


NO_LOSS = "no job lost measurably"


@pytest.mark.parametrize(
    ("jobs", "verdict"),
    [
        ([(RATE, 100, 99.6, 8.0), (RATE, 100, 60, 2.0)], "lost most: job 2, "),
        ([(RATE, 100, 70, 2.0), (RATE, 100, 60, 2.0)], "lost most: job 2, "),
        ([(TIME, 100, 190, 2.0), (RATE, 100, 60, 2.0)], "lost most: job 1, "),
        ([(RATE, 100, 50, 80.0), (RATE, 100, 90, 1.0)], "lost most: job 2, "),
        ([(RATE, 100, 130, 2.0), (RATE, 100, 96, 1.0), (TIME, 100, 80, 1.0)], "lost most: job 2, "),
        ([(WRITING, 10, 20, None), (RATE, 100, 90, 1.0)], "lost most: job 2, "),
        ([(WRITING, 10, 20, None), (RATE, 100, 99.6, 8.0)], f"{NO_LOSS}: too few repetitions"),
        ([(RATE, 100, 99.9, None), (RATE, 100, 100, None)], f"{NO_LOSS}: too few repetitions"),
        ([(RATE, 100, 97, 8.0), (TIME, 100, 103, 9.0)], NO_LOSS),
    ],
)
def test_the_headline_is_the_job_that_lost_most_beyond_the_uncertainty(
    jobs: list[tuple[Metric, float, float, float | None]], verdict: str
) -> None:
    answer = answer_of(jobs)
    lines = screen(answer, "").lines
    assert lines[0].value == answer.verdict
    assert answer.verdict.startswith(verdict)
    costs = [line.value for line in lines[1:]]
    assert [line.label for line in lines[1:]] == [f"job {number}" for number in range(1, len(jobs) + 1)]
    for one, said, section in zip(answer.jobs, costs, sections(answer, "x"), strict=True):
        (cost,) = one.changes.values()
        assert ("no significant difference" in said) == (cost.distinct is False)
        shown = io.StringIO()
        print_table(section, Console(file=shown, width=200))
        assert (f"{cost.difference_percent:+.1f} %" in shown.getvalue()) == (cost.distinct is not False)


def test_a_quote_that_is_not_closed_is_a_mistake_of_usage() -> None:
    run_dlemu("together", "train 'workload=unet3d", "train workload=unet3d").assert_ended(2, "no closing quotation")


@pytest.mark.slow
def test_training_and_checkpoints_run_alone_then_beside_each_other(dataset: Path, tmp_path: Path) -> None:
    training = without(small_run(tmp_path / "unused", dataset), "output", "metric.cached")
    saving = ["workload=llama3_8b", "scale=laptop", "ranks=1", f"checkpoint.checkpoint_folder={tmp_path / 'saved'}"]
    saving += ["checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=0"]
    jobs = [" ".join(["train", *training]), " ".join(saving)]
    folder = tmp_path / "together"
    run_dlemu("together", jobs[0]).assert_ended(2, "only one job is named")
    refused = run_dlemu("together", "train workload=unet3d output.folder=x", jobs[1])
    refused.assert_ended(2, "name the folder of all of them with --output")
    absent = f"train workload=default ranks=1 dataset.data_folder={tmp_path / 'absent'}"
    refused = run_dlemu("together", jobs[1], absent, "--output", str(folder))
    assert (refused.status, "dlemu datagen" in refused.err, sorted(tmp_path.iterdir())) == (2, True, [])
    ended = run_dlemu("together", *jobs, "--output", str(folder))
    assert ended.status == 0, ended.err
    assert f"report: {folder}/report.html" in ended.out
    answer = read_answer(str(folder), TOGETHER, Together)
    assert answer is not None
    assert [one.command for one in answer.jobs] == ["train", "checkpoint"]
    for one in answer.jobs:
        assert one.changes
        assert 0 <= one.together.overlap_percent <= 100
        for run in (one.alone, one.together):
            summary = json.loads((folder / run.folder / "summary.json").read_text())
            assert summary["kind"] == run.figures.kind
            if run.figures.kind == "training":
                assert "evict_page_cache: epochs" in (folder / run.folder / "config.yaml").read_text()
    assert not [*(tmp_path / "saved").iterdir()], "each run saves into a folder of its own, and removes it"
    run_dlemu("together", *jobs, "--output", str(folder)).assert_ended(2, "set --output to a new folder")
