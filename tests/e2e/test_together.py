"""Jobs side by side: each has its own result, and the answer says what the others cost it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlemu.report.page import Words
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.together.page import open_page
from dlemu.studies.together.run import TOGETHER, JobTogether, MeasuredJob, Together, overlap_percent, read_together
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


def told(rate: float) -> MeasuredJob:
    figures = JobFigures(kind="training", workload="w", ranks=1, metrics={"samples_per_second": Value(rate)})
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
    save_answer(str(tmp_path), TOGETHER, Together(complete=True, settings_digest="", jobs=(job, job)))
    costs = next(part for part in open_page(str(tmp_path)).page.words if isinstance(part, Words)).points
    assert [cost.partition(":")[0] for cost in costs] == ["job 1, train w", "job 2, train w"]


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
