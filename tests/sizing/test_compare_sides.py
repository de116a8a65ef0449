"""The arithmetic of comparisons, by hand and by the published figures that it must give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.jobs.checkpoint.summary import READING
from dlemu.jobs.training.parts import CATALOGUE, training_metrics
from dlemu.jobs.training.summary import Mean
from dlemu.machine.environment import StorageFacts
from dlemu.metrics.catalogue import RUN
from dlemu.results.figures import Conditions, JobFigures, Value
from dlemu.results.parts import Environment
from dlemu.studies.answers import RunPair
from dlemu.studies.compare import compare_sides
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.page import screen
from dlemu.studies.compare.sides import Settings, Side, read_side, read_sides, side_of_runs
from tests.report.folders import write_run

OUTCOMES = {True: "pass", False: "fail", None: "no verdict"}


def figures(total_seconds: float | None = 100.0, **changes: Any) -> JobFigures:
    metrics = {name: changes.pop(name) for name in [one.name for one in CATALOGUE] if name in changes}
    run = JobFigures(kind="training", workload="unet3d", ranks=18, epochs=5, outcome="pass")
    return replace(run, metrics=training_metrics({"total_seconds": total_seconds} | metrics), **changes)


def with_ranks(*numbers: int, seconds: float = 1.0) -> dict[Settings, JobFigures]:
    return {(("ranks", str(number)),): figures(100.0 * seconds) for number in numbers}


def compare_runs(a: JobFigures, b: JobFigures) -> RunPair:
    return compare_sides.compare_runs(a, b, [], {}, {})


def test_kioxias_published_figures_come_out() -> None:
    """KIOXIA CM7 white paper on DLIO: 5 epochs of unet3d on 18 V100, 2552 s against 2906 s."""
    pair = compare_runs(figures(2552), figures(2906))
    assert pair.metrics["total_seconds"].difference_percent == pytest.approx(-12.2, abs=0.05)
    assert pair.plan is not None
    assert pair.plan.days_saved_per_year == pytest.approx(44, abs=0.5)
    assert pair.plan.hours_per_model == pytest.approx((14.2, 16.1), abs=0.05)
    # the paper rounds hours first: 625 and 547
    assert pair.plan.models_per_year == pytest.approx((618, 543), abs=0.5)


def test_an_uncertainty_is_that_of_both() -> None:
    a = figures(au_percent=Mean(mean=50.0, per_epoch=(49.0, 50.0, 51.0)))
    b = figures(au_percent=Mean(mean=100.0, per_epoch=(98.0, 100.0, 102.0)))
    difference = compare_runs(a, b).metrics["au_percent"]
    assert difference.difference_percent == pytest.approx(-50)
    width = 4.303 / 3**0.5 * 0.02  # the t of two degrees of freedom, each side 2 % of its mean
    assert difference.half_width_percent == pytest.approx(100 * 0.5 * 2**0.5 * width, rel=0.01)
    assert difference.distinct is True
    assert compare_runs(a, a).metrics["au_percent"].distinct is False
    for epochs in ((50.0,), (40.0, 60.0)):  # of two, Student's t would say 50 +- 127
        few = figures(au_percent=Mean(mean=50.0, per_epoch=epochs))
        unknown = compare_runs(few, few).metrics["au_percent"]
        assert (unknown.half_width_percent, unknown.distinct) == (None, None)


def test_a_part_of_an_epoch_is_not_taken_for_an_epoch() -> None:
    whole, part = figures(epochs=1), figures(epochs=1, cut_steps=(150,))
    assert compare_runs(part, whole).not_comparable == (
        "train.total_training_steps cut epochs of A and B at different steps",
    )
    again = compare_runs(part, figures(90.0, epochs=1, cut_steps=(150,)))
    assert (again.not_comparable, again.plan) == ((), None)


def test_runs_of_equal_settings_are_paired() -> None:
    a, b = side_of_runs("a", with_ranks(1, 2, 4)), side_of_runs("b", with_ranks(2, 4, 8, seconds=2))
    pairs = compare(a, b).runs
    assert [pair.settings for pair in pairs] == [{"ranks": "2"}, {"ranks": "4"}]
    assert [pair.metrics["total_seconds"].difference_percent for pair in pairs] == pytest.approx([-50, -50])
    with pytest.raises(UserError, match="no run with the same settings; compare two runs"):
        compare(a, side_of_runs("c", with_ranks(3)))


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        ({1: True, 2: True}, {1: True, 2: False}, "A feeds at least 2 accelerators, B feeds 1 accelerator"),
        ({1: True, 2: True, 3: False}, {1: True}, "A feeds 2 accelerators, B feeds at least 1 accelerator"),
        ({4: False}, {4: True}, "A feeds fewer than 4, B feeds at least 4 accelerators"),
    ],
)
def test_a_count_is_a_bound_unless_one_more_was_shown_to_fail(
    of_a: dict[int, bool | None], of_b: dict[int, bool | None], words: str
) -> None:
    a, b = (
        side_of_runs(
            name, {(("ranks", str(n)),): figures(None, ranks=n, outcome=OUTCOMES[one]) for n, one in tried.items()}
        )
        for name, tried in (("a", of_a), ("b", of_b))
    )
    assert compare(a, b).verdict == words


def test_more_than_two_folders_are_counted_before_any_is_read() -> None:
    """As the shell's DIR/* gives them, files included."""
    with pytest.raises(UserError, match=r"3 names are given, from r/a to r/notes\.txt: wanted two folders"):
        read_sides(["r/a", "r/b", "r/notes.txt"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 17}, "ranks is 18 for A and 17 for B"),
        ({"epochs": 2}, "epochs is 5 for A and 2 for B"),
        ({"workload": "bert"}, "workload is unet3d for A and bert for B"),
        ({"accelerator": "b200"}, "accelerator is h100 for A and b200 for B"),
    ],
)
def test_runs_that_did_not_do_the_same_work_plan_no_year(change: dict[str, Any], words: str) -> None:
    a = figures(accelerator="h100")
    pair = compare_runs(a, replace(a, **change))
    assert (pair.not_comparable, pair.plan) == ((words,), None)
    assert compare_runs(a, a).not_comparable == ()


def served(name: str, phases: tuple[str, ...] = (), run: JobFigures | None = None, **changes: Any) -> Side:
    """A run of which memory served these phases."""
    return side_of_runs(name, {(): run or figures()}, {(): Conditions(title="unet3d", from_memory=phases, **changes)})


def test_two_that_were_always_busy_are_not_told_apart() -> None:
    """1.4 +- 0.9 % were a difference, of two folders on one device that had nothing to do."""
    where = Environment(storage=StorageFacts(folder="/mnt", file_system="ext4", device="/dev/vda"))
    busy = replace(figures(), limited_by={RUN: "nothing"})
    a, b = (side_of_runs(name, {(): busy}, {(): Conditions(title="unet3d", environment=where)}) for name in "ab")
    compared = compare(a, b)
    assert compared.verdict.startswith("both kept 18 accelerators busy")
    assert "A and B are on the same device, /dev/vda" in compared.issues
    in_memory = compare(served("a", (RUN,), busy), served("b", (RUN,), busy))
    assert in_memory.verdict.startswith("memory served both, not storage: both kept 18"), "no word of it in the title"


def test_a_run_that_memory_served_is_not_compared_with_one_from_storage() -> None:
    fast, slow = served("fast", (RUN,), figures(50.0)), served("slow")
    for a, b, name in ((fast, slow, "A"), (slow, fast, "B")):
        compared = compare(a, b)
        assert compared.verdict.startswith(f"not comparable: {name}'s data came from memory; ")
        assert compared.runs[0].plan is None
        shown = [line.label for line in screen(compared, "").lines if line.label]
        assert shown == ["answer", "A", "B", "next"], "no time is shown, but what compares the storage"
    assert compare(fast, fast).verdict.startswith("memory served both, not storage: with 18 accelerators ")
    assert compare(slow, slow).verdict.startswith("with 18 accelerators ")


def test_checkpoints_that_one_side_read_from_memory_are_compared_by_their_writing() -> None:
    metrics = {f"{what}_slowest_seconds": Value(2.0) for what in ("write", "read")}
    run = JobFigures(kind="checkpoint", workload="llama", ranks=1, metrics=metrics)
    cold, warm = served("cold", (), run), served("warm", (READING,), run)
    verdict = compare(cold, warm).verdict
    assert verdict.startswith("writing: A and B take the same time")
    assert verdict.endswith("; reading: not comparable: B's data came from memory")
    table = screen(compare(cold, warm), "").table
    assert table is not None
    assert [row[0] for row in table.rows] == ["written, one checkpoint, s"], "and none read"
    assert "; memory served both, not storage: reading: A and B" in compare(warm, warm).verdict


def test_runs_of_two_datasets_plan_no_year(tmp_path: Path) -> None:
    few, many = (
        read_side(str(write_run(tmp_path / name, telemetry=False, steps=steps)))[0]
        for name, steps in (("a", 9), ("b", 12))
    )
    few, many = (replace(side, runs={(): replace(side.runs[()], outcome="pass")}) for side in (few, many))
    compared = compare(few, many)
    assert compared.verdict.startswith("not comparable: num_files_train is ")
    assert all(pair.plan is None for pair in compared.runs)
    assert compare(few, few).runs[0].plan is not None
    about = few.conditions[()]
    larger = replace(few, conditions={(): replace(about, work=about.work | {"total_bytes": "9.9 GB"})})
    assert compare(few, larger).verdict.startswith("not comparable: total_bytes is ")


@pytest.mark.parametrize(("outcome", "planned"), [("no verdict", False), ("undecided", True), ("fail", True)])
def test_no_year_follows_from_a_run_that_says_nothing_of_the_storage(outcome: str, planned: bool) -> None:
    for pair in (figures(), figures(outcome=outcome)), (figures(outcome=outcome), figures()):
        assert (compare_runs(*pair).plan is not None) is planned


@pytest.mark.parametrize(
    "summary", [{"model": "unet3d", "num_accelerators": 2, "metric": {"train_au_mean_percentage": 99.0}}, {"epochs": 1}]
)
def test_results_of_another_program_are_no_traceback(tmp_path: Path, summary: dict[str, Any]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"holds no summary\.json written by dlemu.*: wanted the folder of") as refused:
        read_sides([str(tmp_path), str(tmp_path)])
    assert "\n" not in str(refused.value)
    assert refused.value.exit_status == 2
