"""The arithmetic of comparisons, by hand and by the published figures that it must give."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.results.summary import Mean
from dlemu.sizing.answers import RunFigures
from dlemu.sizing.compare_sides import Extras, compare, compare_runs
from dlemu.sizing.sides import Settings, Side, read_side, read_sides, side_of_runs

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


def figures(total_seconds: float | None = 100.0, **changes: Any) -> RunFigures:
    run = RunFigures(workload="unet3d", ranks=18, epochs=5, passed=True, total_seconds=total_seconds)
    return replace(run, **changes)


def with_ranks(*numbers: int, seconds: float = 1.0) -> dict[Settings, RunFigures]:
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


def test_one_epoch_has_no_uncertainty() -> None:
    run = figures(au_percent=Mean(mean=50.0, per_epoch=(50.0,)))
    difference = compare_runs(run, run).metrics["au_percent"]
    assert (difference.half_width_percent, difference.distinct) == (None, None)


def test_a_run_that_did_not_complete_plans_nothing() -> None:
    assert compare_runs(figures(total_seconds=None), figures()).plan is None


def test_money_and_power() -> None:
    sides = Side(name="a", accelerators=16, gb_per_second=44.0), Side(name="b", accelerators=8, gb_per_second=30.0)
    a, b = compare(*sides, (Extras(price=800, watts=22), Extras())).economy
    assert (a.cost_per_accelerator, a.gb_per_second_per_watt) == (50, 2)
    assert (b.cost_per_accelerator, b.gb_per_second_per_watt) == (None, None)
    assert (a.watts_per_accelerator, a.years, a.cost_over_years_per_accelerator) == (22 / 16, None, None)


def test_energy_over_years() -> None:
    sides = Side(name="a", accelerators=16, gb_per_second=44.0), Side(name="b")
    given = Extras(price=800, watts=32, years=5, energy_price=0.25)
    a, b = compare(*sides, (given, given)).economy
    assert a.energy_kwh_per_accelerator == pytest.approx(2 * 8.760 * 5)
    assert a.cost_over_years_per_accelerator == pytest.approx(50 + 87.6 * 0.25)
    assert (b.energy_kwh_per_accelerator, b.cost_over_years_per_accelerator) == (None, None)  # it feeds none


def test_what_a_storage_feeds_is_what_its_largest_passing_run_had() -> None:
    rates = {4: 40.0, 8: 80.0, 16: 90.0}
    runs: dict[Settings, RunFigures] = {
        (("ranks", str(ranks)),): figures(ranks=ranks, passed=ranks < 16, app_mb_per_second=Mean(mean=rate))
        for ranks, rate in rates.items()
    }
    side = side_of_runs("drive", runs)
    assert (side.accelerators, side.gb_per_second, side.workload) == (8, 0.08, "unet3d")
    assert [count.mean("app_mb_per_second") for count in side.counts] == [40.0, 80.0, 90.0]


def test_runs_of_equal_settings_are_paired() -> None:
    a, b = Side(name="a", runs=with_ranks(1, 2, 4)), Side(name="b", runs=with_ranks(2, 4, 8, seconds=2))
    pairs = compare(a, b).runs
    assert [pair.settings for pair in pairs] == [{"ranks": "2"}, {"ranks": "4"}]
    assert [pair.metrics["total_seconds"].difference_percent for pair in pairs] == pytest.approx([-50, -50])


def test_nothing_in_common_is_said() -> None:
    a, b = Side(name="a", runs=with_ranks(1, 2)), Side(name="b", runs=with_ranks(3, 4))
    with pytest.raises(UserError, match="no run with the same settings: ranks=1; ranks=2 against ranks=3"):
        compare(a, b)


def verdict(a_seconds: tuple[float, ...], b_seconds: tuple[float, ...]) -> str:
    """Compare two runs of so many epochs, each of which took its seconds."""
    sides = []
    for name, seconds, ranks in (("a", a_seconds, 18), ("b", b_seconds, 17)):
        rates = tuple(1000 / second for second in seconds)
        rate = Mean(mean=sum(rates) / len(rates), per_epoch=rates)
        run = figures(sum(seconds), ranks=ranks, epochs=len(seconds), samples_per_second=rate)
        sides.append(side_of_runs(name, {(): run}))
    return compare(sides[0], sides[1]).verdict


def test_the_verdict_is_a_sentence() -> None:
    assert (
        verdict((100, 100.1, 99.9), (120, 120.1, 119.9))
        == "with 18 and 17 accelerators A takes 16.7 % less time than B (+- 0.3); A feeds 18 accelerators, B 17"
    )
    assert "no difference in time is shown: A to B +0.0 % +- 5.6" in verdict((100, 101, 99), (100, 102, 98))
    assert "25.0 % more time than B (one epoch: no uncertainty)" in verdict((100,), (80,))


def test_a_count_of_one_is_an_accelerator() -> None:
    run = figures(ranks=1)
    comparison = compare(side_of_runs("a", {(): run}), side_of_runs("b", {(): run}))
    assert "with 1 accelerator A" in comparison.verdict
    assert "A and B feed 1 accelerator each" in comparison.verdict


@pytest.mark.parametrize(
    "summary",
    [
        {"model": "unet3d", "num_accelerators": 2, "metric": {"train_au_mean_percentage": 99.0}},
        {"epochs": 1},
    ],
)
def test_results_of_another_program_are_no_traceback(tmp_path: Path, summary: dict[str, Any]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"holds no summary\.json of dlemu's.*: wanted the folder of a run") as refused:
        read_sides([str(tmp_path), str(tmp_path)])
    assert "\n" not in str(refused.value)
    assert refused.value.exit_status == 2


def test_results_of_another_program_are_compared_where_somebody_reads_them(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"epochs": 1}')
    sides = read_sides([str(tmp_path)] * 2, foreign=lambda folder: side_of_runs(folder, {(): figures()}))
    assert compare(*sides).runs[0].metrics["total_seconds"].difference_percent == 0


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        read_side(str(tmp_path / "none"))
