"""Jobs side by side: each has its own result, and the answer says what the others cost it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dlemu.report.table import print_section
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.together.page import screen, sections
from dlemu.studies.together.run import (
    TOGETHER,
    JobTogether,
    MeasuredJob,
    Together,
    overlap_percent,
    read_together,
    verdict_fields,
)
from tests.e2e.harness import dlemu as run_dlemu
from tests.e2e.harness import small_run


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


def told(
    rate: float, half: float | None = None, metric: str = "samples_per_second", kind: str = "training"
) -> MeasuredJob:
    figures = JobFigures(kind=kind, workload="w", ranks=1, metrics={metric: Value(rate, half)})
    return MeasuredJob(
        folder="x", figures=figures, began_at="2026-01-01T00:00:00+00:00", ended_at="2026-01-01T00:00:10+00:00"
    )


def test_the_cost_is_what_a_job_had_alone_and_has_not_beside_others() -> None:
    cost = JobTogether(command="train", words=(), alone=told(100.0), beside=told(60.0)).cost["samples_per_second"]
    assert (cost.a, cost.b) == (60.0, 100.0)
    assert cost.difference_percent == pytest.approx(-40.0)
    assert JobTogether(command="train", words=(), beside=told(60.0)).cost == {}


def test_what_others_cost_each_of_two_equal_jobs_is_told_apart(tmp_path: Path) -> None:
    job = JobTogether(command="train", words=(), alone=told(100.0), beside=told(60.0))
    answer = Together(complete=True, settings_digest="", jobs=(job, job), **verdict_fields((job, job)))
    costs = [line.value for line in screen(answer, "").lines if not line.label]
    assert [cost.partition(":")[0] for cost in costs] == ["job 1, train w", "job 2, train w"]


RATE, TIME = ("samples_per_second", "training"), ("total_seconds", "training")
WRITING = ("write_slowest_seconds", "checkpoint")


@pytest.mark.parametrize(
    ("jobs", "lost_most"),
    [
        ([(RATE, 100, 99.6, 8.0), (RATE, 100, 60, 2.0)], 2),
        ([(RATE, 100, 70, 2.0), (RATE, 100, 60, 2.0)], 2),
        ([(TIME, 100, 190, 2.0), (RATE, 100, 60, 2.0)], 1),
        ([(RATE, 100, 50, 80.0), (RATE, 100, 90, 1.0)], 2),
        ([(RATE, 100, 130, 2.0), (RATE, 100, 96, 1.0), (TIME, 100, 80, 1.0)], 2),
        ([(WRITING, 10, 20, None), (RATE, 100, 99.6, 8.0)], -1),
        ([(WRITING, 10, 20, None), (RATE, 100, 90, 1.0)], -2),
        ([(RATE, 100, 97, 8.0), (TIME, 100, 103, 9.0)], None),
        ([(RATE, 100, 130, 2.0), (RATE, 100, 100, None)], None),
    ],
)
def test_the_headline_is_the_job_that_lost_most(
    jobs: list[tuple[tuple[str, str], float, float, float | None]], lost_most: int | None, tmp_path: Path
) -> None:
    both = [
        JobTogether(command="train", words=(), alone=told(alone, half, *of), beside=told(beside, half, *of))
        for of, alone, beside, half in jobs
    ]
    fields = verdict_fields(both)
    answer = Together(complete=True, settings_digest="", jobs=tuple(both), **fields)
    save_answer(str(tmp_path), TOGETHER, answer)
    headline = {
        None: "no job lost anything that can be told",
        -1: "may have lost most: job 1, ",
        -2: "lost for certain: job 2, ",
    }.get(lost_most, f"lost most: job {lost_most}, ")
    for text in (answer.verdict, screen(answer, "").lines[0].value):
        assert text.startswith(headline)
    assert json.loads((tmp_path / TOGETHER).read_text())["lost_most"] == {-1: None, -2: 2}.get(
        lost_most or 0, lost_most
    )
    for one, said in zip(both, answer.verdicts, strict=True):
        (cost,) = one.cost.values()
        within = cost.distinct is False or cost.a == cost.b
        assert ("no difference in" in said) == within
        assert (f"{cost.difference_percent:+.1f} %" in said) != within
        shown = io.StringIO()
        for section in sections(answer, "x"):
            print_section(section, Console(file=shown, width=200))
        assert (f"{cost.difference_percent:+.1f} %" in shown.getvalue()) == (cost.distinct is not False)


def test_a_quote_that_is_not_closed_is_a_mistake_of_usage() -> None:
    refused = run_dlemu("together", "train 'workload=unet3d", "train workload=unet3d")
    assert (refused.status, "no closing quotation" in refused.err) == (2, True)


@pytest.mark.slow
def test_training_and_checkpoints_run_alone_then_beside_each_other(dataset: Path, tmp_path: Path) -> None:
    training = [word for word in small_run(tmp_path / "unused", dataset) if not word.startswith("output.")]
    saving = ["workload=llama3_8b", "scale=laptop", "ranks=1", f"checkpoint.checkpoint_folder={tmp_path / 'saved'}"]
    saving += ["checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=0"]
    jobs = [" ".join(["train", *training]), " ".join(saving)]
    folder = tmp_path / "together"
    refused = run_dlemu("together", jobs[0])
    assert (refused.status, "only one job is named" in refused.err) == (2, True)
    refused = run_dlemu("together", "train workload=unet3d output.folder=x", jobs[1])
    assert (refused.status, "name the folder of all of them with --output" in refused.err) == (2, True)
    absent = f"train workload=default ranks=1 dataset.data_folder={tmp_path / 'absent'}"
    refused = run_dlemu("together", jobs[1], absent, "--output", str(folder))
    assert (refused.status, "dlemu datagen" in refused.err, sorted(tmp_path.iterdir())) == (2, True, [])
    ended = run_dlemu("together", *jobs, "--output", str(folder))
    assert ended.status == 0, ended.err
    assert f"report: {folder}/report.html" in ended.out
    answer = read_together(str(folder))
    assert answer is not None
    assert [one.command for one in answer.jobs] == ["train", "checkpoint"]
    for one in answer.jobs:
        assert one.alone is not None
        assert one.beside is not None
        assert one.cost
        assert one.overlap_percent is not None
        assert 0 <= one.overlap_percent <= 100
        for run in (one.alone, one.beside):
            summary = json.loads((folder / run.folder / "summary.json").read_text())
            assert summary["kind"] == run.figures.kind
    again = run_dlemu("together", *jobs, "--output", str(folder))
    assert (again.status, "set --output to a new folder" in again.err) == (2, True)
