"""The arithmetic of comparisons, by hand and by the published figures that it must give."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datagen.errors import UserError
from dlemu.config.points import DATA_FOLDER, check_points, points
from dlemu.sizing.compare import Extras, compare_runs
from dlemu.sizing.device import NOTHING, device_figures
from dlemu.sizing.sides import Side, compare_sides
from dlemu.sizing.sweep import sweep

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


def run_figures(total_seconds: float | None = 100.0, **changes: Any) -> dict[str, Any]:
    names = ("au_percent", "au_rules_percent", "samples_per_second", "app_mb_per_second", "device_mb_per_second")
    return {
        "ranks": 18,
        "epochs": 5,
        "passed": True,
        "limited_by": None,
        "verdict": "PASS",
        "total_seconds": total_seconds,
        "max_device_mb_per_second": None,
        "mean_device_read_latency_ms": None,
        "time_to_first_batch_seconds": None,
        **dict.fromkeys(names),
        **changes,
    }


def test_kioxias_published_figures_come_out() -> None:
    """KIOXIA CM7 white paper on DLIO: 5 epochs of unet3d on 18 V100, 2552 s against 2906 s."""
    told = compare_runs(run_figures(2552), run_figures(2906))
    assert told["metrics"]["total_seconds"]["difference_percent"] == pytest.approx(-12.2, abs=0.05)
    plan = told["plan"]
    assert plan["days_saved_per_year"] == pytest.approx(44, abs=0.5)
    assert plan["hours_per_model"] == pytest.approx([14.2, 16.1], abs=0.05)
    assert plan["models_per_year"] == pytest.approx([618, 543], abs=0.5)  # the paper rounds hours first: 625 and 547


def test_they_are_those_of_the_paper() -> None:
    path = SEEDS / "kioxia_cm7.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with path.open() as lines:
        rows = {row["item"]: row for row in csv.DictReader(lines)}
    total = rows["total_time_18acc_5ep"]
    told = compare_runs(run_figures(float(total["kioxia_cm7r"])), run_figures(float(total["vendor_a"])))
    faster = float(rows["faster_18acc_pct"]["kioxia_cm7r"])
    assert -told["metrics"]["total_seconds"]["difference_percent"] == pytest.approx(faster, abs=0.1)
    for hours, column in zip(told["plan"]["hours_per_model"], ("kioxia_cm7r", "vendor_a"), strict=True):
        assert round(hours) == float(rows["time_100ep_18acc"][column])


def test_an_uncertainty_is_that_of_both() -> None:
    a = run_figures(au_percent={"mean": 50.0, "per_epoch": [49.0, 50.0, 51.0]})
    b = run_figures(au_percent={"mean": 100.0, "per_epoch": [98.0, 100.0, 102.0]})
    told = compare_runs(a, b)["metrics"]["au_percent"]
    assert told["difference_percent"] == pytest.approx(-50)
    width = 4.303 / 3**0.5 * 0.02  # Student's t of two degrees, each side 2 % of its mean
    assert told["half_width_percent"] == pytest.approx(100 * 0.5 * 2**0.5 * width, rel=0.01)
    assert told["distinct"] is True
    same = compare_runs(a, a)["metrics"]["au_percent"]
    assert same["distinct"] is False


def test_one_epoch_has_no_uncertainty() -> None:
    one = run_figures(au_percent={"mean": 50.0, "per_epoch": [50.0]})
    told = compare_runs(one, one)["metrics"]["au_percent"]
    assert (told["half_width_percent"], told["distinct"]) == (None, None)


def test_a_run_that_did_not_complete_plans_nothing() -> None:
    assert compare_runs(run_figures(total_seconds=None), run_figures())["plan"] is None


def test_money_and_power() -> None:
    sides = Side("a", {}, 16, 44.0), Side("b", {}, 8, 30.0)
    told = compare_sides(*sides, (Extras(price=800, watts=22), Extras()))["economy"]
    assert (told[0]["cost_per_accelerator"], told[0]["gb_per_second_per_watt"]) == (50, 2)
    assert (told[1]["cost_per_accelerator"], told[1]["gb_per_second_per_watt"]) == (None, None)


def test_runs_of_equal_settings_are_paired() -> None:
    a = Side("a", {(("ranks", str(n)),): run_figures(n) for n in (1, 2, 4)}, None, None)
    b = Side("b", {(("ranks", str(n)),): run_figures(2 * n) for n in (2, 4, 8)}, None, None)
    told = compare_sides(a, b, (Extras(), Extras()))["runs"]
    assert [run["settings"] for run in told] == [{"ranks": "2"}, {"ranks": "4"}]
    assert [run["metrics"]["total_seconds"]["difference_percent"] for run in told] == pytest.approx([-50, -50])


def test_nothing_in_common_is_said() -> None:
    a = Side("a", {(("ranks", str(n)),): run_figures() for n in (1, 2)}, None, None)
    b = Side("b", {(("ranks", str(n)),): run_figures() for n in (3, 4)}, None, None)
    with pytest.raises(UserError, match="no run with the same settings: ranks=1; ranks=2 against ranks=3"):
        compare_sides(a, b, (Extras(), Extras()))


def test_a_sweep_is_every_combination() -> None:
    found = points(["workload=unet3d", "ranks=1,2", "drives=/mnt/a,/mnt/b", "reader.file_shuffle=seed"])
    assert [point.settings for point in found] == [
        {"ranks": ranks, DATA_FOLDER: drive} for ranks in "12" for drive in ("/mnt/a", "/mnt/b")
    ]
    assert found[1].words == ("workload=unet3d", "reader.file_shuffle=seed", "ranks=1", f"{DATA_FOLDER}=/mnt/b")
    assert len(points(["ranks=range(1,5)", "a=[1,2]"])) == 4
    assert points(["drives=/mnt/a"])[0].words == (f"{DATA_FOLDER}=/mnt/a",)
    with pytest.raises(UserError, match="several values"):
        check_points(points(["ranks=4"]))


def test_finished_points_are_kept_and_the_others_run(tmp_path: Path) -> None:
    found = points(["ranks=1,2,3"])
    kept = {"settings": {"ranks": "1"}, "folder": "point-01", "failure": None, "exit_status": None, "figures": {}}
    tried: list[str] = []

    def run(point: Any, folder: str) -> None:
        tried.append(point.settings["ranks"])
        raise UserError("no such dataset")

    states: list[dict[str, Any]] = []
    swept = sweep({}, found, str(tmp_path), [kept], run, states.append)
    assert tried == ["2", "3"]
    assert swept["points"][0] == kept
    assert [point["failure"] for point in swept["points"][1:]] == ["no such dataset"] * 2
    assert [point["exit_status"] for point in swept["points"][1:]] == [2, 2]
    assert [len(state["points"]) for state in states] == [1, 2, 3]
    assert swept["complete"]
    assert not any(state["complete"] for state in states)


def test_device_figures_are_those_of_counted_devices(tmp_path: Path) -> None:
    """What lies below a counted device serves the same bytes; an interval without reads has no latency."""
    rows = [
        (1, "md0", "read_mb_per_second", 80.0),
        (1, "nvme0n1", "read_mb_per_second", 80.0),
        (2, "md0", "read_mb_per_second", 30.0),
        (1, "md0", "reads_per_second", 300.0),
        (2, "md0", "reads_per_second", 100.0),
        (1, "md0", "mean_read_latency_ms", 2.0),
        (2, "md0", "mean_read_latency_ms", 6.0),
        (1, "nvme0n1", "mean_read_latency_ms", 100.0),
    ]
    columns = {
        "time_ns": [row[0] for row in rows],
        "host": ["here"] * len(rows),
        "probe": ["block"] * len(rows),
        "source": [row[1] for row in rows],
        "metric": [row[2] for row in rows],
        "value": [row[3] for row in rows],
    }
    pq.write_table(pa.table(columns), tmp_path / "telemetry.parquet")
    devices = [
        {"probe": "block", "host": "here", "name": name, "counted": name == "md0"} for name in ("md0", "nvme0n1")
    ]
    found = device_figures(str(tmp_path), devices)
    assert found.max_device_mb_per_second == 80
    assert found.mean_device_read_latency_ms == pytest.approx(3)
    assert device_figures(str(tmp_path / "none"), devices) == NOTHING
