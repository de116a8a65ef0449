"""Somebody kills what measures: the message says so at once, and nobody is left behind or waited for."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import dlemu
from datagen.errors import DlemuError
from dlemu.jobs.probe import requests
from dlemu.jobs.probe.requests import measure_cell
from dlemu.jobs.probe.result import CellSpec, Engine
from tests.e2e.harness import assert_gone, until

MIB = 1 << 20
LONG_SECONDS = 300.0
NO_FIO = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB))
    return path


def descendants(before: set[psutil.Process]) -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if process not in before]


def killing(count: int, victim: int) -> Future[list[psutil.Process]]:
    """Wait in a thread until this process has `count` more descendants, and kill one of them; return all of these."""
    before = set(psutil.Process().children(recursive=True))

    def kill() -> list[psutil.Process]:
        until(lambda: len(descendants(before)) == count, f"{count} processes")
        everyone = descendants(before)
        everyone[victim].kill()
        return everyone

    with_a_thread = ThreadPoolExecutor(1)
    killed = with_a_thread.submit(kill)
    with_a_thread.shutdown(wait=False)
    return killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "count", "said"),
    [
        pytest.param("fio", 1, r"fio \(process \d+\) was killed by SIGKILL", marks=NO_FIO),
        pytest.param("threads", 2, r"job [01] \(process \d+\) was killed by SIGKILL"),
    ],
)
def test_who_makes_requests_is_killed(engine: Engine, count: int, said: str, file: Path) -> None:
    wanted = CellSpec(access="randread", size_bytes=4096, depth=2, jobs=2)
    killed = killing(count, 0)
    with pytest.raises(DlemuError, match=said):
        measure_cell(wanted, str(file), MIB, LONG_SECONDS, engine)
    assert_gone(killed.result())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_has_to_stop_removes_the_file_that_it_measured(number: signal.Signals, tmp_path: Path) -> None:
    words = ["--engine", "threads", "--seconds", "60", "--file-size", "1m", "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "dlemu", "probe", str(tmp_path), *words]
    probe = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: any(tmp_path.glob("*dlemu-probe-*")), "the probe's file")
    probe.send_signal(number)
    _, complaint = probe.communicate(timeout=60)
    assert probe.returncode == 128 + number
    assert "interrupted by" in complaint
    assert not list(tmp_path.glob("*dlemu-probe-*"))


def test_requests_that_never_end_are_given_up(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fio = tmp_path / "fio"
    fio.write_text("#!/bin/sh\nexec sleep 3600\n")
    fio.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(requests, "_PATIENCE_SECONDS", 0.2)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(DlemuError, match=r"did not end within .* s: check the storage"):
        measure_cell(CellSpec(access="randread", size_bytes=4096, depth=2, jobs=1), str(file), MIB, 0.1, "fio")
    assert descendants(before) == []


@pytest.mark.slow
def test_a_reader_is_killed(tmp_path: Path) -> None:
    """The levels before are no whole answer."""
    settings = {"dataset.data_folder": str(tmp_path / "data"), "dataset.format": "npy", "dataset.num_files_train": 400}
    settings |= {"dataset.record_length_bytes": 20_000, "reader.data_loader": "threads", "reader.batch_size": 1}
    dlemu.datagen(settings)
    settings |= {"train.computation_time": 0.02, "ranks": 1, "output.folder": str(tmp_path / "predicted")}
    killed = killing(2, 1)
    with pytest.raises(DlemuError, match=r"reader [01] \(process \d+\) was killed by SIGKILL"):
        dlemu.predict(settings | {"metric.cached": True})
    assert_gone(killed.result())
    assert not (tmp_path / "predicted" / "predict.json").exists()
