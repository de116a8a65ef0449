"""Accelerators whose samples a scale made smaller are never told as those of the real kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.config import load, load_received, to_yaml
from dlemu.config.schema import full_size
from dlemu.jobs.training.host_checks import judge_ceiling
from dlemu.jobs.training.result import read_run
from dlemu.jobs.training.wording import screen
from dlemu.metrics.catalogue import RUN
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.metrics.findings import LimitedBy
from dlemu.report.page import open_page
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.results.wording import at_scale
from dlemu.studies.answers import SIZE, SWEEP, SweepAnswer, SweepPoint, SweepQuestion
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.sides import side_of_runs
from dlemu.studies.size.find_size import _full_mb_per_accelerator
from dlemu.studies.size.size_verdict import at_full_size, build_answer, sentence
from tests.goldens.render import RESULTS
from tests.runs import present
from tests.shown import details
from tests.sizing.fakes import known, make_trial, question

HALF = """
model: {name: own}
dataset: {data_folder: x, format: npz, num_files_train: 9, record_length_bytes: 4000000}
reader: {batch_size: 4}
train: {computation_time: 0.5}
scales:
  half: {dataset: {record_length_bytes: 2000000}}
  slim: {reader: {batch_size: 1}}
  large: {dataset: {record_length_bytes: 8000000}}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(HALF)
    return str(path)


@pytest.mark.parametrize("name", ["unet3d", "cosmoflow", "flux", "resnet50", "bert", "llama3_8b"])
def test_a_scaled_workload_knows_itself_at_full_size(name: str, tmp_path: Path) -> None:
    full, small = load([f"workload={name}"]), load([f"workload={name}", "scale=laptop"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(small))
    words = [f"workload={path}"]
    for workload in (small, load_received(str(path)), load(words), load([*words, "ranks=2"])):
        found = present(full_size(workload))
        for section in ("model", "dataset", "train", "checkpoint"):
            assert getattr(found, section) == getattr(full, section)
    assert full_size(full) == full
    assert full_size(replace(small, scales={})) is None


@pytest.mark.parametrize(
    ("words", "divisor", "wanted_mb"),
    [
        (["workload=unet3d", "scale=laptop"], 256.5, 3176.6),
        (["workload=cosmoflow", "accelerator=a100", "scale=laptop"], 64.0, 512.8),
        (["workload=resnet50", "scale=laptop", "dataset.num_files_train=7"], 16.2, 204.0),
        (["own", "scale=half"], 2.0, 32.0),
        (["own", "scale=large"], 0.5, 32.0),
        (["own", "scale=slim"], 1.0, 32.0),
        (["own", "scale=half", "dataset.record_length_bytes=4000000"], 1.0, 0.0),
        (["own"], 1.0, 0.0),
        (["workload=bert", "scale=laptop"], 1.0, 0.0),
    ],
)
def test_what_one_accelerator_needs_at_full_size(words: list[str], divisor: float, wanted_mb: float, own: str) -> None:
    workload = load([f"workload={own}" if word == "own" else word for word in words])
    assert sample_divisor(workload) == pytest.approx(divisor, rel=0.002)
    assert _full_mb_per_accelerator(workload) == pytest.approx(wanted_mb, rel=1e-3)
    full = present(full_size(workload))
    assert demand("x", full).accelerator == workload.accelerator
    need = demand("w", workload)
    doctor = judge_ceiling(need, 8, 99.0).observed
    assert f" x {need.accelerator or 'accelerator'}{at_scale(sample_divisor(workload))} on this host" in doctor


@pytest.mark.parametrize(
    ("divisor", "full_mb", "accelerator", "storage_mb", "fed"),
    [
        (256, 3177, "h100", 80.0, "0"),
        (256, 3177, "h100", 20_100.0, "7"),
        (0.5, 32, None, 290.0, "10"),
        (None, 0, "h100", 290.0, ""),
    ],
)
def test_size_says_what_the_storage_feeds_at_full_size(
    divisor: float | None, full_mb: float, accelerator: str | None, storage_mb: float, fed: str, tmp_path: Path
) -> None:
    trials = [make_trial(number, [au] * 8, app_mb_per_second=1.0) for number, au in ((7, 94.0), (8, 83.0)) * 2]
    known_of = known(full_mb_per_accelerator=full_mb, probe_mb_per_second=storage_mb)
    answer = build_answer(question(accelerator=accelerator, sample_divisor=divisor), known_of, trials)
    answer = replace(answer, complete=True, verdict=sentence(answer))
    small = at_scale(divisor)
    name = f"x {accelerator}" if accelerator else "accelerators"
    assert f"7 {name}{small} pass, 8 fail; limit: " in answer.verdict
    save_answer(str(tmp_path), SIZE, answer)
    lines = [(line.label, line.value) for line in open_page(str(tmp_path)).screen.lines]
    if divisor is None:
        assert "real size" not in lines[0][1]
        return
    assert answer.full_size is not None
    assert lines[0] == ("answer", at_full_size(answer, answer.full_size)), "before what small samples' accelerators do"
    assert lines[0][1].startswith(f"{fed} {name} at real size: for AU ")
    by_host = at_full_size(replace(answer, limited_by=LimitedBy(what="host CPU")), answer.full_size)
    assert by_host.startswith("at least "), "the host kept it from more"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (256.0, 256.0, " with samples 1/256 of real size"),
        (16.0, 64.0, "; A's accelerators with samples 1/16 of real size; B's accelerators with samples 1/64 of"),
        (1.0, 64.0, "B's accelerators with samples 1/64 of real size"),
        (1.0, None, ""),
    ],
)
def test_comparisons_sweeps_and_pages_name_the_size_of_samples(a: Any, b: Any, said: str, tmp_path: Path) -> None:
    metrics = {"au_percent": Value(95.0), "total_seconds": Value(9.0)}
    settings: dict[str, Any] = {"kind": "training", "workload": "w", "accelerator": "h100", "ranks": 4, "epochs": 3}
    settings |= {"outcome": "pass", "limited_by": {RUN: "storage"}, "metrics": metrics}
    runs = [JobFigures(sample_divisor=divisor, **settings) for divisor in (a, b)]
    both = compare(side_of_runs("a", {(): runs[0]}), side_of_runs("b", {(): runs[1]}))
    assert said in both.verdict
    assert ("samples" in both.verdict) == bool(said)
    points = tuple(SweepPoint(settings={"ranks": "4"}, folder="", figures=run) for run in runs)
    swept = SweepAnswer(complete=True, question=SweepQuestion(settings_digest=""), points=points)
    save_answer(str(tmp_path), SWEEP, swept)
    shown, measured = details("sweep", swept, str(tmp_path)), read_run(str(RESULTS / "train")).summary
    for divisor, run in zip((a, b), runs, strict=True):
        assert at_scale(divisor) in shown
        assert f" x h100{at_scale(divisor)} on" in screen(replace(measured, sample_divisor=divisor), "x").title
        assert run.title == f"w h100{at_scale(divisor)}"
    nameless = replace(measured, accelerator=None, sample_divisor=16.0)
    assert "2 ranks with samples 1/16 of real size on" in screen(nameless, "x").title
    assert at_scale(0.5) == " with samples 2 x real size"
