"""Some benchmarks run, say what they promise, and leave nothing behind; `scripts/bench --quick` runs all of them."""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def _command(*words: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "benchmarks", *words], os.environ | {"PYTHONPATH": str(SCRIPTS)}


def _bench(*words: str) -> subprocess.CompletedProcess[str]:
    argv, environment = _command(*words)
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=150)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module benchmarks.figure; scripts/ is no package of the product."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("benchmarks.figure")


@pytest.mark.slow
def test_a_stopped_benchmark_leaves_no_process_and_no_data(tmp_path: Path) -> None:
    argv, environment = _command("read", "--quick", "--folder", str(tmp_path))
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as bench:
        deadline = time.monotonic() + 150
        while not list(tmp_path.glob("*/run-*/live/*.steps")):
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        descendants = psutil.Process(bench.pid).children(recursive=True)
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=150)
    assert bench.returncode == 130, said
    assert descendants
    assert psutil.wait_procs(descendants, timeout=30)[1] == []
    assert not os.listdir(tmp_path)


def test_a_peer_that_trains_without_reading_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    columns, peers = (importlib.import_module(f"benchmarks.{name}") for name in ("peer_columns", "peer"))
    columns.check_reading(2.9, 3.0)
    with pytest.raises(peers.PeerFailed, match=r"trained on 3\.00 GB and read 0\.01"):
        columns.check_reading(0.01, 3.0)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    ran = _bench("raed", "--folder", str(tmp_path))
    assert ran.returncode == 2
    assert "raed" in ran.stderr
    assert "read" in ran.stderr


@pytest.mark.parametrize(
    ("ratio", "limit", "bound", "missed"),
    [
        (0.9, 0.85, "ratio_at_least", False),
        (0.8, 0.85, "ratio_at_least", True),
        (1.2, 1.3, "ratio_at_most", False),
        (1.4, 1.3, "ratio_at_most", True),
        (math.nan, 0.85, "ratio_at_least", True),
        (math.nan, 1.3, "ratio_at_most", True),
    ],
)
def test_a_figure_misses_when_its_ratio_is_beyond_the_bound(
    figures: Any, ratio: float, limit: float, bound: str, missed: bool
) -> None:
    figure = figures.compare("x", "MB/s", [(ratio * 100, 100.0)], "plain", getattr(figures, bound)(limit))
    assert figure.missed == missed
    assert figure.text.endswith("MISSED" if missed else "ok")


def test_the_ratio_is_the_median_of_the_rounds_own(figures: Any) -> None:
    # The medians of either side are of different rounds here, and would give 0.45.
    figure = figures.compare("x", "MB/s", [(45, 50), (90, 100), (30, 100)], "plain", None)
    assert figure.ratio == pytest.approx(0.9)
    assert not figure.missed


def test_a_value_alone_is_judged_by_its_own_bound(figures: Any) -> None:
    assert not figures.alone("x", "MB", [100, 160, 140], figures.value_at_most(150)).missed
    assert figures.alone("x", "MB", [100, 160, 155], figures.value_at_most(150)).missed


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [
        ([1.0, 1.2, 0.9], "ok"),
        ([1.2, 1.3], "undecided"),
        ([1.2, 1.3, 1.1], "undecided"),
        ([1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 0.9], "WORSE"),
        ([1.1, 1.1, 1.1, 1.1, 1.1, 0.9, 0.9], "noise"),
    ],
)
def test_the_guard_calls_a_row_worse_only_if_nearly_all_pairs_say_so(
    ratios: list[float], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    assert importlib.import_module("benchmarks.guard").verdict(ratios) == wanted
