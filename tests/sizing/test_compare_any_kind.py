"""Runs of a kind of job that another distribution brings are compared by its own metrics, in its own words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KIND = """
from dlemu.results.kinds import Kind
KIND = Kind(name="stat", noun="a run of stat", command="stat", read="parts.read", metrics="parts.CATALOGUE",
            figures="parts.figures", conditions="parts.conditions", summary="parts.summary")
"""
PARTS = """
import json, os
from types import SimpleNamespace
from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, mean_over
CATALOGUE = Catalogue(metrics=(
    Metric(name="stats_per_second", title="stats", unit="/s", better="higher", meaning="of files", head="stats",
           is_tile=True, is_drawn=True),
    Metric(name="mean_latency_us", title="latency", unit="us", better="lower", meaning="of a stat", is_tile=True),
), repetition="pass")
def summary(folder):
    return SimpleNamespace(**json.load(open(os.path.join(folder, "summary.json"))))
def read(folder):
    return SimpleNamespace(folder=folder, summary=summary(folder))
def figures(run):
    rates, latencies = run.summary.rates, [1e6 / rate for rate in run.summary.rates]
    metrics = {"stats_per_second": mean_over(rates), "mean_latency_us": mean_over(latencies)}
    return JobFigures(kind="stat", workload="many", ranks=2, limited_by={"run": "storage"}, metrics=metrics)
def conditions(summary):
    return Conditions(title="many", how={"cached": summary.cached})
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which that distribution is installed."""
    package, info = tmp_path / "site" / "dlemu_stat", tmp_path / "site" / "dlemu_stat-1.0.dist-info"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("kind", KIND), ("parts", PARTS)):
        (package / f"{name}.py").write_text(text)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlemu-stat\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dlemu.jobs]\nstat = dlemu_stat\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def saved(folder: Path, rate: float, *, cached: bool = False) -> str:
    folder.mkdir()
    known = {"schema_version": 1, "kind": "stat", "rates": [rate, 1.01 * rate, 0.99 * rate], "cached": cached}
    (folder / "summary.json").write_text(json.dumps(known))
    return str(folder)


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlemu", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_two_runs_are_compared(elsewhere: dict[str, str], tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", 2000.0), saved(tmp_path / "b", 1000.0, cached=True)
    printed = run(elsewhere, "compare", a, b, "--json", "--output", str(tmp_path / "both"))
    assert printed.returncode == 0, printed.stderr
    answer = json.loads(printed.stdout)
    assert answer["verdict"].startswith("stats: A is 100.0 % better than B (+- ")
    assert "latency: A is 50.0 % better than B (+- " in answer["verdict"]
    assert (answer["kind"], answer["issues"]) == ("stat", ["cached was False for A and True for B"])
    assert answer["runs"][0]["limited_by"] == {"run": ["storage", "storage"]}
    shown = run(elsewhere, "compare", a, b, "--no-report", "--output", str(tmp_path / "again"))
    assert "latency (us)" in shown.stdout, shown.stderr


def test_a_comparison_of_a_kind_that_is_not_installed_names_it(elsewhere: dict[str, str], tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", 2000.0), saved(tmp_path / "b", 1000.0)
    both = str(tmp_path / "both")
    assert run(elsewhere, "compare", a, b, "--no-report", "--output", both).returncode == 0
    refused = run(dict(os.environ), "report", both)
    assert (refused.returncode, "no kind of job 'stat' here" in refused.stderr) == (2, True), refused.stderr
