"""A sweep as a user runs it, one point of which can't run, and the comparison of what came out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.harness import dlemu, small_run, without

pytestmark = pytest.mark.slow


def test_a_sweep_goes_on_where_it_ended_and_is_compared(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = [*without(small_run(folder, dataset), "ranks"), "ranks=1,500"]  # 500 ranks have no sample each
    ended = dlemu("sweep", *words)
    assert ended.status == 2, ended.err
    swept = json.loads((folder / "sweep.json").read_text())
    assert [point["failure"] is None for point in swept["points"]] == [True, False]
    assert "ranks=500 failed" in ended.out
    metrics = swept["points"][0]["figures"]["metrics"]
    run = json.loads((folder / "point-01" / "summary.json").read_text())
    assert metrics["total_seconds"]["mean"] == run["metrics"]["total_seconds"]
    assert metrics["au_percent"]["mean"] == run["metrics"]["au_percent"]["mean"]

    again = dlemu("sweep", *words, "--json")
    assert "2 runs, 1 of them done" in again.err
    assert json.loads((folder / "sweep.json").read_text())["points"][0] == swept["points"][0]
    assert json.loads(again.out)["points"][0] == swept["points"][0]
    assert again.status == ended.status

    told = dlemu("compare", str(folder / "point-01"), str(folder), "--json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    assert found["runs"][0]["metrics"]["total_seconds"]["difference_percent"] == 0
    assert not list(tmp_path.glob("**/compare.json"))  # --json is for programs: nothing is left

    both = tmp_path / "both"
    told = dlemu("compare", str(folder / "point-01"), str(folder), "--output", str(both), "--no-report")
    assert told.status == 0, told.err
    kept = json.loads((both / "compare.json").read_text())
    assert kept["runs"] == found["runs"]
    assert kept["verdict"].partition("; ")[0].replace("+-", "±") in " ".join(told.out.split()), "lines are wrapped"
    refused = dlemu("compare", str(folder / "point-01"), str(folder), "--output", str(both))
    refused.assert_ended(2, "holds another result, a comparison")
    refused = dlemu("compare", str(dataset), str(folder))
    assert (refused.status, refused.err.count("\n"), str(dataset) in refused.err) == (2, 1, True)


def test_two_drives_are_compared_by_one_command(tmp_path: Path) -> None:
    """It makes both datasets, runs the same on each, past the page cache, and says the difference."""
    few = without(small_run(tmp_path / "runs", tmp_path), "dataset.data_folder", "metric.cached")
    drives = f"drives={tmp_path / 'a'},{tmp_path / 'b'}"
    told = dlemu("compare", *few, drives, "train.epochs=3", "--make", "--json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    assert [side["name"] for side in found["sides"]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert not found["runs"][0]["not_comparable"]
    assert found["runs"][0]["metrics"]["total_seconds"]["half_width_percent"] is not None
    for point in ("point-01", "point-02"):
        assert "evict_page_cache: epochs" in (tmp_path / "runs" / point / "config.yaml").read_text()

    dlemu("compare", *few, f"drives={tmp_path / 'a'}").assert_ended(2, "settings with two drives, as in drives=")
