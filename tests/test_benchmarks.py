"""Some benchmarks run, say what they promise, and leave nothing behind; `scripts/bench --quick` runs all of them."""

from __future__ import annotations

import importlib
import json
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

from dlemu.metrics.verdict import COMPLETED
from tests.object_stores import BUCKET, KEYS, own_server

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


def test_help_is_measured_beside_a_bare_interpreter(tmp_path: Path) -> None:
    ran = _bench("help", "--folder", str(tmp_path))
    assert ran.returncode in COMPLETED, ran.stderr
    line = ran.stdout.splitlines()[1]
    assert line.startswith("help ")
    assert "python -c pass" in line
    assert line.endswith("MISSED" if ran.returncode else "ok")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("client", ["bare", "signed", "obstore"])
def test_plain_clients_fetch_each_object_and_sign_as_they_say(client: str) -> None:
    if client == "obstore":
        pytest.importorskip("obstore")
    with own_server() as server:
        server.objects |= {"set/a": bytes(100_000), "set/b": bytes(1000)}
        address = server.endpoint.removeprefix("http://").split(":")
        command = [sys.executable, "-m", "benchmarks.plain_get", client, "3", "1", *address, BUCKET, "set/a", "set/b"]
        environment = os.environ | KEYS | {"PYTHONPATH": str(SCRIPTS)}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["bytes"] == 2 * 101_000  # the first epoch warms up
        asked = [request.key for request in server.requests]
        assert [sorted(asked[begin : begin + 2]) for begin in (0, 2, 4)] == 3 * [["set/a", "set/b"]]
        assert {"authorization" in request.headers for request in server.requests} == {client != "bare"}


@pytest.mark.proof
def test_many_files_are_measured_beside_few(tmp_path: Path) -> None:
    ran = _bench("many_files", "--quick", "--folder", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    first, memory = ran.stdout.splitlines()[1:]
    assert "20,000 files" in first
    assert "1,000 files" in first
    assert "bytes" in memory
    assert not os.listdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.proof)])
def test_a_stopped_benchmark_leaves_no_process_and_no_data(tmp_path: Path, stop: signal.Signals) -> None:
    argv, environment = _command("read", "--quick", "--folder", str(tmp_path))
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as bench:
        deadline = time.monotonic() + 150
        while not list(tmp_path.glob("*/run-*/live/*.steps")):
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        descendants = psutil.Process(bench.pid).children(recursive=True)
        bench.send_signal(stop)
        _, said = bench.communicate(timeout=150)
    assert bench.returncode == 130, said
    assert descendants
    assert psutil.wait_procs(descendants, timeout=30)[1] == []
    assert not os.listdir(tmp_path)


FIGURES = ("samples/s", "MB/s", "CPU for each GB", "memory (PSS)")
BESIDE_PLAIN = [
    *((what, "plain read of the same bytes") for what in FIGURES),
    ("samples/s", "plain read into batches"),
    ("CPU for each GB", "plain read into batches"),
]


@pytest.mark.proof
def test_a_workload_is_measured_beside_a_plain_read_of_its_files(tmp_path: Path) -> None:
    ran = _bench("dlrm", "--quick", "--folder", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    for line, (what, other) in zip(ran.stdout.splitlines()[1:], BESIDE_PLAIN, strict=True):
        assert line.startswith(f"dlrm         {what} ")
        assert other in line
        assert line.endswith("for information")
    assert not os.listdir(tmp_path)


def test_ranks_and_engine_are_refused_where_they_would_do_nothing(tmp_path: Path) -> None:
    for words in (("read", "--ranks", "2"), ("hdf5", "help", "--engine", "library"), ("hdf5", "--ranks", "0")):
        ran = _bench(*words, "--folder", str(tmp_path))
        assert ran.returncode == 2
        assert words[-2] in ran.stderr
    assert not os.listdir(tmp_path)


def test_a_peer_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    ran = _bench("hdf5", "--peer", str(tmp_path / "nowhere"), "--folder", str(tmp_path))
    assert ran.returncode == 2
    assert "wanted a virtual environment with DLIO" in ran.stderr
    assert not os.listdir(tmp_path)


def _pretend_peer(folder: Path, body: str) -> Path:
    """Return an environment whose dlio_benchmark is the one function given."""
    package = folder / "peer" / "package" / "dlio_benchmark"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(f"import sys\n\n\ndef main():\n    {body}\n")
    python = folder / "peer" / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder / "peer"


@pytest.mark.proof
def test_what_a_peer_can_not_do_is_told_and_the_rest_is_measured(tmp_path: Path) -> None:
    data = tmp_path / "data"
    peer = _pretend_peer(tmp_path, "raise ValueError('this format is none of mine')")
    ran = _bench("hdf5", "--quick", "--engine", "library", "--peer", str(peer), "--folder", str(data))
    assert ran.returncode == 3, ran.stderr
    *figures, reading, making, last = ran.stdout.splitlines()[1:]
    for line, (what, other) in zip(figures, BESIDE_PLAIN, strict=True):
        assert line.startswith(f"hdf5         {what}, library engine ")
        assert other in line
    assert reading.startswith("hdf5 ")
    assert reading.endswith("DLIO could not do it: it ended with status 1: ValueError: this format is none of mine")
    assert making.startswith("hdf5 ")
    assert "datagen" in making
    assert "DLIO could not do it" in making
    assert last.endswith("2 not compared")
    assert not os.listdir(data)


def test_a_peer_that_trains_nothing_has_failed_whatever_its_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    peers = importlib.import_module("benchmarks.peer")
    peer = peers.Peer(str(_pretend_peer(tmp_path, "print('0 files are left')")))
    stale = tmp_path / "set-peer"
    stale.mkdir()
    (stale / "0_output.json").write_text('{"1": {"load": {"block1": [1.0]}}}')
    (stale / "per_epoch_stats.json").write_text(
        '{"1": {"block1": {"start": "2026-01-01T00:00:00.0", "end": "2026-01-01T00:00:01.0"}}}'
    )
    with pytest.raises(peers.PeerFailed, match=r"no times of its steps.*0 files are left"):
        peer.train(str(tmp_path / "set"), {"format": "npz"}, 1)
    with pytest.raises(peers.PeerFailed, match="no begin and end of making data: 0 files are left"):
        peer.make(str(tmp_path / "set"), {"format": "npz"})


def test_a_peer_that_trains_without_reading_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    columns, peers = (importlib.import_module(f"benchmarks.{name}") for name in ("peer_columns", "peer"))
    columns.check_reading(2.9, 3.0)
    with pytest.raises(peers.PeerFailed, match=r"trained on 3\.00 GB and read 0\.01"):
        columns.check_reading(0.01, 3.0)


def test_what_children_read_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    processes = importlib.import_module("benchmarks.processes")
    (tmp_path / "file").write_bytes(bytes(5_000_000))
    grandchild = f"import subprocess; subprocess.run(['cat', '{tmp_path / 'file'}'], stdout=subprocess.DEVNULL)"
    nothing, much = (processes.run([sys.executable, "-c", code]).read_bytes for code in ("", grandchild))
    assert 5_000_000 <= much - nothing < 6_500_000


@pytest.mark.slow
@pytest.mark.skipif("DLEMU_PEER_ENV" not in os.environ, reason="DLEMU_PEER_ENV names no environment with DLIO")
def test_a_peer_trains_on_our_files_and_is_measured_beside_us(tmp_path: Path) -> None:
    ran = _bench("hdf5", "--quick", "--peer", os.environ["DLEMU_PEER_ENV"], "--folder", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert sum(" DLIO " in line for line in ran.stdout.splitlines()) == len(FIGURES) + 1, "and datagen"
    assert not os.listdir(tmp_path)


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
    assert importlib.import_module("benchmarks.guard").said(ratios) == wanted
