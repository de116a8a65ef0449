"""The arithmetic of comparisons, by hand and by the published figures that it must give."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.jobs.checkpoint.metrics import READING
from dlemu.jobs.training.figures_of import training_metrics
from dlemu.jobs.training.metrics import CATALOGUE
from dlemu.jobs.training.summary import Mean
from dlemu.metrics.catalogue import RUN
from dlemu.results.compared import Conditions, difference, difference_in_time, in_words
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import catalogue_of
from dlemu.studies.answers import ComparedRun, ComparedSide, RunPair
from dlemu.studies.compare.compare_sides import compare, compare_runs
from dlemu.studies.compare.page import _fed_line, _fed_rows, _tiles
from dlemu.studies.compare.sides import Settings, Side, read_side, read_sides, side_of_runs
from tests.goldens.render import RESULTS
from tests.report.folders import write_run

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


def figures(total_seconds: float | None = 100.0, **changes: Any) -> JobFigures:
    metrics = {name: changes.pop(name) for name in [one.name for one in CATALOGUE] if name in changes}
    run = JobFigures(kind="training", workload="unet3d", ranks=18, epochs=5, passed=True)
    return replace(run, metrics=training_metrics({"total_seconds": total_seconds} | metrics), **changes)


def with_ranks(*numbers: int, seconds: float = 1.0) -> dict[Settings, JobFigures]:
    return {(("ranks", str(number)),): figures(100.0 * seconds) for number in numbers}


def test_kioxias_published_figures_come_out() -> None:
    """KIOXIA CM7 white paper on DLIO: 5 epochs of unet3d on 18 V100, 2552 s against 2906 s."""
    pair = compare_runs(figures(2552), figures(2906))
    assert pair.metrics["total_seconds"].difference_percent == pytest.approx(-12.2, abs=0.05)
    assert pair.plan is not None
    assert pair.plan.days_saved_per_year == pytest.approx(44, abs=0.5)
    assert pair.plan.hours_per_model == pytest.approx((14.2, 16.1), abs=0.05)
    # the paper rounds hours first: 625 and 547
    assert pair.plan.models_per_year == pytest.approx((618, 543), abs=0.5)


def test_they_are_those_of_the_paper() -> None:
    path = SEEDS / "kioxia_cm7.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with path.open() as lines:
        rows = {row["item"]: row for row in csv.DictReader(lines)}
    total = rows["total_time_18acc_5ep"]
    pair = compare_runs(figures(float(total["kioxia_cm7r"])), figures(float(total["vendor_a"])))
    faster = float(rows["faster_18acc_pct"]["kioxia_cm7r"])
    assert pair.metrics["total_seconds"].difference_percent == pytest.approx(-faster, abs=0.1)
    assert pair.plan is not None
    for hours, column in zip(pair.plan.hours_per_model, ("kioxia_cm7r", "vendor_a"), strict=True):
        assert round(hours) == float(rows["time_100ep_18acc"][column])


def test_an_uncertainty_is_that_of_both() -> None:
    a = figures(au_percent=Mean(mean=50.0, per_epoch=(49.0, 50.0, 51.0)))
    b = figures(au_percent=Mean(mean=100.0, per_epoch=(98.0, 100.0, 102.0)))
    difference = compare_runs(a, b).metrics["au_percent"]
    assert difference.difference_percent == pytest.approx(-50)
    width = 4.303 / 3**0.5 * 0.02  # the t of two degrees of freedom, each side 2 % of its mean
    assert difference.half_width_percent == pytest.approx(100 * 0.5 * 2**0.5 * width, rel=0.01)
    assert difference.distinct is True
    assert compare_runs(a, a).metrics["au_percent"].distinct is False


def test_a_difference_without_an_interval_has_no_winner() -> None:
    """Of the same storage, two p95 of a few prompts each differ by a factor of four."""
    said = in_words(difference(Value(4.4667), Value(1.0)), better="lower")
    assert said == "A to B +346.7 % (no interval: it may be chance)"


def test_a_percentile_is_not_shown_as_a_mean() -> None:
    run = JobFigures(kind="kvcache", workload="llama3_8b", ranks=1, metrics={"load_p95_seconds": Value(0.5)})
    both = compare(side_of_runs("a", {(): run}), side_of_runs("b", {(): run}))
    (_, *_, of_a), (_, *_, of_b) = _tiles(both, catalogue_of("kvcache"))
    assert of_a.endswith("95th percentile")
    assert of_b == of_a


@pytest.mark.parametrize("epochs", [(50.0,), (40.0, 60.0)])
def test_one_epoch_or_two_have_no_interval(epochs: tuple[float, ...]) -> None:
    """Of two, Student's t would say 50 +- 127."""
    run = figures(au_percent=Mean(mean=50.0, per_epoch=epochs))
    difference = compare_runs(run, run).metrics["au_percent"]
    assert (difference.half_width_percent, difference.distinct) == (None, None)


def test_a_run_that_did_not_complete_plans_nothing() -> None:
    assert compare_runs(figures(total_seconds=None), figures()).plan is None


def test_a_part_of_an_epoch_is_not_taken_for_an_epoch() -> None:
    whole, part = figures(epochs=1), figures(epochs=1, cut_steps=(150,))
    assert compare_runs(part, whole).not_comparable == (
        "train.total_training_steps cut epochs short: A's had 150 steps, B's all",
    )
    again = compare_runs(part, figures(90.0, epochs=1, cut_steps=(150,)))
    assert (again.not_comparable, again.plan) == ((), None)


def test_steps_that_compute_for_other_times_are_other_work() -> None:
    a, b = figures(computation_seconds=0.05), figures(computation_seconds=0.02)
    assert compare_runs(a, b).not_comparable == ("a step of A's computes for 0.05 s, of B's for 0.02 s",)
    assert compare_runs(a, replace(b, computation_seconds=None)).not_comparable == (), "another tool's does not say"
    assert compare_runs(a, a).not_comparable == ()


def test_what_a_storage_feeds_is_what_its_largest_passing_run_had() -> None:
    rates = {4: 40.0, 8: 80.0, 16: 90.0}
    runs: dict[Settings, JobFigures] = {
        (("ranks", str(ranks)),): figures(ranks=ranks, passed=ranks < 16, app_mb_per_second=Mean(mean=rate))
        for ranks, rate in rates.items()
    }
    side = side_of_runs("drive", runs)
    assert (side.accelerators, side.gb_per_second, side.workload) == (8, 0.08, "unet3d")
    assert [tried.figures.mean("app_mb_per_second") for tried in side.counts] == [40.0, 80.0, 90.0]


def test_runs_of_equal_settings_are_paired() -> None:
    a, b = Side(name="a", runs=with_ranks(1, 2, 4)), Side(name="b", runs=with_ranks(2, 4, 8, seconds=2))
    pairs = compare(a, b).runs
    assert [pair.settings for pair in pairs] == [{"ranks": "2"}, {"ranks": "4"}]
    assert [pair.metrics["total_seconds"].difference_percent for pair in pairs] == pytest.approx([-50, -50])


def test_nothing_in_common_is_said() -> None:
    a, b = Side(name="a", runs=with_ranks(1, 2)), Side(name="b", runs=with_ranks(3, 4))
    with pytest.raises(UserError, match="no run with the same settings: ranks=1; ranks=2 against ranks=3"):
        compare(a, b)


def verdict(a_seconds: tuple[float, ...], b_seconds: tuple[float, ...], *, of_b: int = 18) -> str:
    """Compare two runs of so many epochs, each of which took its seconds."""
    sides = []
    for name, seconds, ranks in (("a", a_seconds, 18), ("b", b_seconds, of_b)):
        rates = tuple(1000 / second for second in seconds)
        rate = Mean(mean=sum(rates) / len(rates), per_epoch=rates)
        run = figures(sum(seconds), ranks=ranks, epochs=len(seconds), samples_per_second=rate)
        sides.append(side_of_runs(name, {(): run}))
    return compare(sides[0], sides[1]).verdict


def test_the_verdict_is_a_sentence() -> None:
    assert (
        verdict((100, 100.1, 99.9), (120, 120.1, 119.9))
        == "with 18 accelerators A takes 16.7 % less time than B (+- 0.3); A and B feed at least 18 accelerators each"
    )
    assert (
        verdict((100, 100.1, 99.9), (120, 120.1, 119.9), of_b=17)
        == "not comparable: A had 18 accelerators, B 17; A feeds at least 18 accelerators, B at least 17"
    )
    assert "no significant difference in time: A to B +0.0 % +- 5.6" in verdict((100, 101, 99), (100, 102, 98))
    assert "25.0 % more time than B (too few epochs: no interval)" in verdict((100,), (80,))


def test_a_comparison_has_both_sides_whole() -> None:
    good, bad = (
        figures(200.0, ranks=4, epochs=2, limited_by={"run": "storage"}),
        figures(300.0, ranks=4, epochs=3, passed=False),
    )
    settings: Settings = (("ranks", "4"), ("reader.read_threads", "2"))
    count = ComparedRun(figures=figures(ranks=4))
    known = {"accelerators": 4, "gb_per_second": 2.5, "counts": (count,), "warnings": ("w",)}
    a = Side(name="fast", workload="unet3d", runs={settings: good}, **known)  # type: ignore[arg-type]  # by name
    b = Side(name="slow", workload="bert", runs={settings: bad, (("ranks", "9"),): bad})
    comparison = compare(a, b)
    assert (comparison.a, comparison.b) == ("fast", "slow")
    (pair,) = comparison.runs
    assert pair.settings == {"ranks": "4", "reader.read_threads": "2"}
    assert (pair.ranks, pair.passed, pair.limited_by) == ((4, 4), (True, False), {"run": ("storage", None)})
    time = pair.metrics["total_seconds"]
    assert (time.a, time.b) == (200.0, 300.0)
    assert time.difference_percent == pytest.approx(-100 / 3)
    assert (time.a_half_width, time.b_half_width, time.half_width_percent, time.distinct) == (None,) * 4
    plan = pair.plan
    assert plan is not None
    assert plan.epochs == 100
    assert plan.hours_per_model == pytest.approx((100 * 100 / 3600, 100 * 100 / 3600))
    assert plan.models_per_year == pytest.approx((8760 / (1e4 / 3600),) * 2)
    assert plan.days_saved_per_year == pytest.approx(0)
    assert [side.name for side in comparison.sides] == ["fast", "slow"]
    assert [side.workload for side in comparison.sides] == ["unet3d", "bert"]
    assert [side.runs for side in comparison.sides] == [(count,), ()]
    assert comparison.issues == (
        "A ran unet3d and B bert: the difference is not due to the storage alone",
        "only B completed ranks=9: of A no figures are known there",
        "A: w",
    )
    assert [each.gb_per_second for each in comparison.sides] == [2.5, None]
    assert comparison.verdict == (
        "A ran 2 epochs and B 3: per epoch, with 4 accelerators, reader.read_threads=2 A and B take the same "
        "time (too few epochs: no interval); "
        "A feeds 4 accelerators, B none"
    )


@pytest.mark.parametrize(
    ("fed", "words"),
    [
        ((1, 2), "A feeds 1 accelerator, B 2"),
        ((0, 2), "A feeds no accelerators, B 2"),
        ((None, 2), "A feeds no accelerators, B 2"),
        ((3, None), "A feeds 3 accelerators, B none"),
        ((3, 0), "A feeds 3 accelerators, B none"),
        ((1, 1), "A and B feed 1 accelerator each"),
        ((3, 3), "A and B feed 3 accelerators each"),
        ((None, None), "no figure is known for both"),
    ],
)
def test_what_each_side_feeds_is_counted_in_words(fed: tuple[int | None, int | None], words: str) -> None:
    sides = [Side(name=name, accelerators=count) for name, count in zip("ab", fed, strict=True)]
    assert compare(sides[0], sides[1]).verdict == words


def test_a_search_that_the_storage_did_not_end_is_a_lower_bound() -> None:
    a = Side(name="a", accelerators=8, may_feed_more=True)
    b = Side(name="b", accelerators=8)
    found = compare(a, b)
    assert found.verdict == "A feeds at least 8 accelerators, B 8"
    assert [side.may_feed_more for side in found.sides] == [True, False]
    assert list(map(_fed_line, "AB", found.sides)) == ["A: at least 8 accelerators fed", "B: 8 accelerators fed"]
    assert compare(a, replace(a, name="b")).verdict == "A and B feed at least 8 accelerators each"
    assert compare(a, replace(a, name="b", accelerators=0)).verdict == "A feeds at least 8 accelerators, B none"


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        ({1: True, 2: True}, {1: True, 2: False}, "A feeds at least 2 accelerators, B 1"),
        ({1: True, 2: True, 3: False}, {1: True}, "A feeds 2 accelerators, B at least 1"),
        ({1: True, 4: True, 8: False}, {1: False, 4: False}, "A feeds at least 4 accelerators, B none"),
        ({1: True, 2: True}, {1: True, 2: None}, "A feeds at least 2 accelerators, B at least 1"),
        ({4: True, 5: False}, {4: False, 5: False}, "A feeds 4 accelerators, B fewer than 4"),
        ({4: False}, {4: True}, "A feeds fewer than 4 accelerators, B at least 4"),
    ],
)
def test_a_count_is_a_bound_unless_one_more_was_shown_to_fail(
    of_a: dict[int, bool | None], of_b: dict[int, bool | None], words: str
) -> None:
    a, b = (
        side_of_runs(name, {(("ranks", str(n)),): figures(None, ranks=n, passed=passed) for n, passed in tried.items()})
        for name, tried in (("a", of_a), ("b", of_b))
    )
    found = compare(a, b)
    assert found.verdict == words
    rows = {label: both for label, *both in _fed_rows(found.sides)}
    bounds = [side.may_feed_more for side in found.sides]
    assert [cell.startswith("at least") for cell in rows["accelerators fed"]] == bounds


def test_one_more_bounds_only_those_that_read_alike_and_that_the_storage_held_back() -> None:
    def feeds_more(*failed: tuple[int, str, str]) -> bool:
        tried = [(1, "1", True, "nothing"), (1, "4", True, "nothing"), *((n, t, False, why) for n, t, why in failed)]
        runs: dict[Settings, JobFigures] = {
            (("ranks", str(n)), ("reader.read_threads", threads)): figures(
                ranks=n, passed=passed, limited_by={"run": why}
            )
            for n, threads, passed, why in tried
        }
        return side_of_runs("a", runs).may_feed_more

    assert feeds_more((2, "1", "storage"))
    assert not feeds_more((2, "1", "storage"), (2, "4", "storage"))
    assert feeds_more((2, "1", "storage"), (2, "4", "host CPU"))


def test_a_folder_that_is_compared_with_itself_is_named() -> None:
    a = Side(name="runs/a", runs=with_ranks(2))
    assert "A and B are the same folder: they do not differ" in compare(a, replace(a, name="runs/../runs/a/")).issues
    assert compare(a, replace(a, name="runs/b")).issues == ()


def test_a_folder_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="a folder's name is empty"):
        read_sides(["a", ""])


def test_more_than_two_folders_are_counted_before_any_is_read() -> None:
    """As the shell's DIR/* gives them, files included."""
    with pytest.raises(UserError, match=r"3 names are given, from r/a to r/notes\.txt: wanted two folders"):
        read_sides(["r/a", "r/b", "r/notes.txt"])


def test_where_neither_passes_that_is_said_and_only_there() -> None:
    def said(*passed: bool | None) -> str:
        runs = [Side(name=name, runs={(): figures(None, passed=each)}) for name, each in zip("ab", passed, strict=True)]
        return compare(runs[0], runs[1]).verdict

    assert said(False, False) == "neither passes"
    assert said(False, None) == said(True, False) == said(None, None) == "no figure is known for both"


def test_runs_without_a_total_time_have_other_figures() -> None:
    """As incomplete ones."""
    cut = figures(None, passed=None, au_percent=Mean(mean=95.0, per_epoch=(95.0,)), computation_seconds=0.1)

    def said(of_b: JobFigures) -> str:
        return compare(Side(name="a", runs={(): cut}), Side(name="b", runs={(): of_b})).verdict

    assert said(cut) == "total time is not known for both"
    assert said(replace(cut, computation_seconds=0.2)) == (
        "not comparable: a step of A's computes for 0.1 s, of B's for 0.2 s"
    )


@pytest.mark.parametrize("name", ["checkpoint_failed", "checkpoint_killed"])
def test_an_incomplete_run_is_called_so_once(name: str) -> None:
    (side,) = read_side(str(RESULTS / name))
    assert ["incomplete" in warning.lower() for warning in side.warnings].count(True) == 1


@pytest.mark.parametrize(("passed", "said"), [(False, "no count passed"), (None, "no count was judged")])
def test_a_side_without_a_verdict_is_not_called_failed(passed: bool | None, said: str) -> None:
    counts = (ComparedRun(figures=figures(passed=passed)),)
    side = ComparedSide(name="a", workload="unet3d", runs=counts, about=None)
    assert _fed_line("A", side) == f"A: {said}"


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (True, None, "A feeds at least 18 accelerators, B was not judged"),
        (None, True, "A was not judged, B feeds at least 18"),
        (True, False, "A feeds at least 18 accelerators, B fewer than 18"),
    ],
)
def test_the_sentence_tells_a_side_without_a_verdict_from_one_that_failed(
    a: bool | None, b: bool | None, words: str
) -> None:
    side_a, side_b = (side_of_runs(name, {(): figures(None, passed=passed)}) for name, passed in (("a", a), ("b", b)))
    assert compare(side_a, side_b).verdict == words


def test_runs_of_which_one_side_has_none_are_refused_with_what_there_is() -> None:
    search, runs = Side(name="a", accelerators=3), Side(name="b", runs={(("x", "1"), ("y", "2")): figures()})
    wanted = r"a search against x=1 y=2; compare two runs \(a point of a sweep is one: SWEEP/point-01\), two sweeps"
    with pytest.raises(UserError, match=f"no run with the same settings: {wanted}"):
        compare(search, runs)
    with pytest.raises(UserError, match="one run; ranks=3 against a search"):
        compare(Side(name="a", runs={(): figures(), (("ranks", "3"),): figures()}), Side(name="b", accelerators=3))


def test_two_single_runs_are_a_pair_whatever_was_set() -> None:
    a, b = Side(name="a", runs=with_ranks(2)), Side(name="b", runs=with_ranks(3, seconds=2))
    (pair,) = compare(a, b).runs
    assert pair.settings == {}
    assert pair.metrics["total_seconds"].difference_percent == -50


def pair_of(a: Mean | None, b: Mean | None) -> RunPair:
    return compare_runs(figures(samples_per_second=a), figures(samples_per_second=b))


def test_runs_of_more_and_fewer_epochs_are_compared_by_the_epoch() -> None:
    steady = Mean(mean=9.0, per_epoch=(8.9, 9.0, 9.1))
    a, b = figures(200.0, epochs=5, samples_per_second=steady), figures(80.0, epochs=2, samples_per_second=steady)
    total, time = compare_runs(a, b).metrics["total_seconds"], compare_runs(a, b).time("total_seconds")
    assert time is not None
    assert (total.difference_percent, total.distinct) == (150.0, True)
    assert (time.a, time.b, time.distinct) == (40.0, 40.0, False)
    assert time.difference_percent == pytest.approx(0)
    assert total.half_width_percent is not None
    assert time.half_width_percent == pytest.approx(total.half_width_percent * 2 / 5)
    assert compare_runs(a, a).time("total_seconds") == compare_runs(a, a).metrics["total_seconds"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 17}, "A had 18 accelerators, B 17"),
        ({"workload": "bert"}, "A ran unet3d, B bert"),
        ({"accelerator": "b200"}, "A's accelerators were h100, B's b200"),
    ],
)
def test_runs_that_did_not_do_the_same_work_plan_no_year(change: dict[str, Any], words: str) -> None:
    a = figures(accelerator="h100")
    pair = compare_runs(a, replace(a, **change))
    assert (pair.not_comparable, pair.plan) == ((words,), None)
    assert compare_runs(a, a).not_comparable == ()


def served(name: str, phases: tuple[str, ...] = (), run: JobFigures | None = None, **changes: Any) -> Side:
    """A run of which memory served these phases."""
    return side_of_runs(name, {(): run or figures()}, [Conditions(title="unet3d", from_memory=phases, **changes)])


def test_a_run_that_memory_served_is_not_compared_with_one_from_storage() -> None:
    fast, slow = served("fast", (RUN,), figures(50.0)), served("slow")
    for a, b, name in ((fast, slow, "A"), (slow, fast, "B")):
        compared = compare(a, b)
        assert compared.verdict.startswith(f"not comparable: {name}'s data came from memory; ")
        assert compared.runs[0].plan is None
        assert not list(_tiles(compared, catalogue_of("training")))
    assert compare(fast, fast).verdict.startswith("memory served both, not storage: with 18 accelerators ")
    assert compare(slow, slow).verdict.startswith("with 18 accelerators ")


def test_of_a_sweep_each_run_says_whether_memory_served_it() -> None:
    runs = with_ranks(1, 2)
    cold, warm = (Conditions(title="unet3d", from_memory=phases) for phases in ((), (RUN,)))
    a, b = (
        replace(side_of_runs(name, runs), about=cold, about_runs=dict(zip(runs, each, strict=True)))
        for name, each in (("a", (cold, cold)), ("b", (cold, warm)))
    )
    assert [pair.not_comparable for pair in compare(a, b).runs] == [(), ("B's data came from memory",)]


def test_checkpoints_that_one_side_read_from_memory_are_compared_by_their_writing() -> None:
    metrics = {f"{what}_slowest_seconds": Value(2.0) for what in ("write", "read")}
    run = JobFigures(kind="checkpoint", workload="llama", ranks=1, metrics=metrics)
    cold, warm = served("cold", (), run), served("warm", (READING,), run)
    verdict = compare(cold, warm).verdict
    assert verdict.startswith("writing: A and B take the same time")
    assert verdict.endswith("; reading: not comparable: B's data came from memory")
    places = [place for _, place, *_ in _tiles(compare(cold, warm), catalogue_of("checkpoint"))]
    assert not [place for place in places if "read_slowest_seconds" in place]
    assert "; memory served both, not storage: reading: A and B" in compare(warm, warm).verdict


def test_a_search_that_sized_memory_is_not_compared_with_one_of_storage() -> None:
    storage = Side(name="storage", accelerators=2, counts=(ComparedRun(figures=figures()),))
    memory = replace(storage, name="memory", cached=True)
    compared = compare(storage, memory)
    assert compared.not_comparable == ("metric.cached is False for A and True for B",)
    assert compared.verdict.startswith("not comparable: metric.cached is False for A and True for B; ")
    assert compare(memory, memory).not_comparable == ()


def test_loads_of_other_speeds_are_not_comparable() -> None:
    run = JobFigures(kind="kvcache", workload="llama3_8b", ranks=1, metrics={"load_p95_seconds": Value(0.5)})
    a, b = (served(str(rate), (), run, work={"prompts_per_second": rate}) for rate in (5.2, 10.0))
    assert compare(a, b).verdict == "not comparable: prompts_per_second is 5.2 for A and 10.0 for B"
    assert compare(a, a).verdict.startswith("load p95: ")


def test_equal_times_are_no_difference_of_0_percent() -> None:
    assert difference_in_time(difference(Value(2.0), Value(2.0))) == (
        "A and B take the same time (too few epochs: no interval)"
    )
    sure = difference(Value(2.0, 1e-4), Value(2.0005, 1e-4))
    assert sure.distinct
    assert difference_in_time(sure) == "A and B take the same time (+- 0.0)"
    assert in_words(sure, better="lower").startswith("no significant difference")


def test_runs_of_two_datasets_plan_no_year(tmp_path: Path) -> None:
    few, many = (
        read_side(str(write_run(tmp_path / name, telemetry=False, steps=steps)))[0]
        for name, steps in (("a", 9), ("b", 12))
    )
    few, many = (
        replace(side, runs={settings: replace(run, outcome="pass") for settings, run in side.runs.items()})
        for side in (few, many)
    )
    compared = compare(few, many)
    assert compared.verdict.startswith("not comparable: num_files_train is ")
    assert all(pair.plan is None for pair in compared.runs)
    assert compare(few, few).runs[0].plan is not None
    assert few.about is not None
    larger = replace(few, about=replace(few.about, work=few.about.work | {"total_bytes": "9.9 GB"}))
    assert compare(few, larger).verdict.startswith("not comparable: total_bytes is ")


def test_a_step_of_another_batch_is_other_work(tmp_path: Path) -> None:
    """It computes for as long: with more samples in a batch an epoch takes less time on any storage."""
    (a,) = read_side(str(write_run(tmp_path / "a", telemetry=False)))
    assert a.about is not None
    batch_size = a.about.how["batch_size"]
    b = replace(
        a, about=replace(a.about, **{part: getattr(a.about, part) | {"batch_size": 9} for part in ("how", "work")})
    )
    compared = compare(a, b)
    assert compared.verdict.startswith(f"not comparable: batch_size is {batch_size} for A and 9 for B")
    assert sum("batch_size" in issue for issue in compared.issues) == 1
    swept, others = (
        replace(side, runs={(("reader.batch_size", size),): run for run in side.runs.values() for size in ("4", "9")})
        for side in (a, b)
    )
    assert compare(swept, others).runs[0].not_comparable == ()


def test_a_difference_where_one_of_both_is_nothing() -> None:
    ten = Mean(mean=10.0, per_epoch=(9.0, 10.0, 11.0))
    zero = Mean(mean=0.0, per_epoch=(-1.0, 0.0, 1.0))
    to_zero = pair_of(ten, zero).metrics["samples_per_second"]
    assert (to_zero.a, to_zero.b, to_zero.difference_percent, to_zero.half_width_percent) == (10.0, 0.0, None, None)
    of_zero = pair_of(zero, ten).metrics["samples_per_second"]
    assert (of_zero.difference_percent, of_zero.half_width_percent, of_zero.distinct) == (-100.0, None, None)
    assert "samples_per_second" not in pair_of(None, ten).metrics
    assert "samples_per_second" not in pair_of(ten, None).metrics
    same = pair_of(ten, ten).metrics["samples_per_second"]
    # t of two degrees is 4.3027, the deviation 1, of 3 values: 2.4842 each; relative to 10, twice in squares.
    assert same.a_half_width == pytest.approx(2.4842, rel=1e-4)
    assert same.b_half_width == pytest.approx(2.4842, rel=1e-4)
    assert same.half_width_percent == pytest.approx(24.842 * 2**0.5, rel=1e-4)
    assert same.distinct is False


def test_no_plan_without_the_time_of_both() -> None:
    for seconds in (None, 0.0):
        assert compare_runs(figures(seconds), figures()).plan is None
        assert compare_runs(figures(), figures(seconds)).plan is None
    plan = compare_runs(figures(36.0, epochs=1), figures(72.0, epochs=1)).plan
    assert plan is not None
    assert (plan.hours_per_model, plan.models_per_year) == ((1.0, 2.0), (8760.0, 4380.0))
    assert plan.days_saved_per_year == 182.5


@pytest.mark.parametrize(("outcome", "planned"), [("no verdict", False), ("undecided", True), ("fail", True)])
def test_no_year_follows_from_a_run_that_says_nothing_of_the_storage(outcome: str, planned: bool) -> None:
    for pair in (figures(), figures(outcome=outcome)), (figures(outcome=outcome), figures()):
        assert (compare_runs(*pair).plan is not None) is planned


def test_a_count_of_one_is_an_accelerator() -> None:
    run = figures(ranks=1)
    comparison = compare(side_of_runs("a", {(): run}), side_of_runs("b", {(): run}))
    assert "with 1 accelerator A" in comparison.verdict
    assert "A and B feed at least 1 accelerator each" in comparison.verdict


@pytest.mark.parametrize(
    "summary",
    [
        {"model": "unet3d", "num_accelerators": 2, "metric": {"train_au_mean_percentage": 99.0}},
        {"epochs": 1},
    ],
)
def test_results_of_another_program_are_no_traceback(tmp_path: Path, summary: dict[str, Any]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"holds no summary\.json written by dlemu.*: wanted the folder of") as refused:
        read_sides([str(tmp_path), str(tmp_path)])
    assert "\n" not in str(refused.value)
    assert refused.value.exit_status == 2


def test_results_of_another_program_are_compared_where_somebody_reads_them(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"epochs": 1}')
    sides = read_sides([str(tmp_path)] * 2, foreign=lambda folder: side_of_runs(folder, {(): figures()}))
    assert compare(*sides).runs[0].metrics["total_seconds"].difference_percent == 0


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        read_side(str(tmp_path / "none"))
