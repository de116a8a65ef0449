"""Somebody kills what measures: the message says so at once, and nobody is left behind or waited for."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import dlemu
from datagen.errors import DlemuError
from dlemu.jobs.probe import requests
from dlemu.jobs.probe.kernel_aio import why_no_aio
from dlemu.jobs.probe.requests import CellSpec, measure_cell
from dlemu.jobs.probe.result import Engine, ProbeAnswer
from dlemu.telemetry.probe_base import AbsentError
from tests.comm.many_ranks import wait_until
from tests.e2e.harness import assert_gone

MIB = 1 << 20
LONG_SECONDS = 300.0
NO_FIO = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
NO_AIO = pytest.mark.skipif(why_no_aio() is not None, reason=str(why_no_aio()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB))
    return path


def descendants(before: set[psutil.Process]) -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if process not in before]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "count", "victim", "said"),
    [
        pytest.param("fio", 1, 0, r"fio \(process \d+\) was killed by SIGKILL", marks=NO_FIO),
        pytest.param("kernel aio", 3, 0, r"that sends the requests \(process \d+\) was killed", marks=NO_AIO),
        pytest.param("kernel aio", 3, 2, r"job [01] \(process \d+\) was killed by SIGKILL", marks=NO_AIO),
        pytest.param("threads", 3, 0, r"the process that sends the requests \(process \d+\) was killed"),
        pytest.param("threads", 3, 1, r"job [01] \(process \d+\) was killed by SIGKILL"),
    ],
)
def test_who_makes_requests_is_killed(engine: Engine, count: int, victim: int, said: str, file: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    wanted = CellSpec(access="randread", size_bytes=4096, depth=2, jobs=2)
    with ThreadPoolExecutor(1) as pool:
        cell = pool.submit(measure_cell, wanted, str(file), MIB, LONG_SECONDS, engine)
        assert wait_until(lambda: len(descendants(before)) == count or cell.done())
        everyone = sorted(descendants(before), key=_generation)
        everyone[victim].kill()
        with pytest.raises(DlemuError, match=said):
            cell.result(120)
    assert_gone(everyone)


def _generation(process: psutil.Process) -> int:
    """The clean process first, then those that it forked."""
    return int(process.ppid() != psutil.Process().pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_has_to_stop_removes_the_file_that_it_measured(number: signal.Signals, tmp_path: Path) -> None:
    words = ["--engine", "threads", "--seconds", "60", "--file-size", "1m", "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "dlemu", "probe", str(tmp_path), *words]
    probe = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert wait_until(lambda: any(tmp_path.glob("dlemu-probe-*")))
    probe.send_signal(number)
    _, complaint = probe.communicate(timeout=60)
    assert probe.returncode == 128 + number
    assert "interrupted by" in complaint
    assert not list(tmp_path.glob("dlemu-probe-*"))


def test_requests_that_never_end_are_given_up(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fio = tmp_path / "fio"
    fio.write_text("#!/bin/sh\nexec sleep 3600\n")
    fio.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(requests, "_PATIENCE_SECONDS", 0.2)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(DlemuError, match=r"did not end within .* s: check the storage") as failed:
        measure_cell(CellSpec(access="randread", size_bytes=4096, depth=2, jobs=1), str(file), MIB, 0.1, "fio")
    assert not isinstance(failed.value.__context__, AbsentError)
    assert descendants(before) == []


def probing(folder: Path, on_reader: Callable[[list[psutil.Process]], None]) -> Future[ProbeAnswer]:
    """Probe a dataset by 1 and by 3 readers; once 3 are there, they and their parent are given to `on_reader`."""
    settings = {"dataset.data_folder": str(folder / "data"), "dataset.format": "npy", "dataset.num_files_train": 400}
    settings |= {"dataset.record_length_bytes": 20_000, "reader.data_loader": "threads", "reader.batch_size": 1}
    dlemu.datagen(settings)
    before = set(psutil.Process().children(recursive=True))
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(dlemu.probe, settings, readers=[1, 3], folder=str(folder / "probe"), cached=True)
        assert wait_until(lambda: len(descendants(before)) == 4 or probe.done())
        everyone = sorted(descendants(before), key=_generation)
        on_reader(everyone)
        probe.exception(120)
    assert_gone(everyone)
    return probe


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "said"), [(0, "the process of the readers"), (2, "reader [012]")])
def test_a_reader_is_killed_or_who_forked_it(victim: int, said: str, tmp_path: Path) -> None:
    """The levels before are no whole answer."""
    probe = probing(tmp_path, lambda everyone: everyone[victim].kill())
    with pytest.raises(DlemuError, match=rf"{said} \(process \d+\) was killed by SIGKILL"):
        probe.result()
    kept = dlemu.load_result(tmp_path / "probe")
    assert isinstance(kept, ProbeAnswer)
    assert (kept.complete, [cell.jobs for cell in kept.cells]) == (False, [1])
