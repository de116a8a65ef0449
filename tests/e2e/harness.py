"""Running the real program as a user does, and what every end of it must leave behind: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from dlemu.jobs.training.result import Run, read_run
from dlemu.jobs.training.steplog import read_log
from dlemu.metrics.verdict import COMPLETED
from tests.e2e.zygote import Forked, zygote

DLEMU = str(Path(sys.executable).parent / "dlemu")
DLIO = str(Path(sys.executable).parent / "dlio_benchmark")
MPIRUN = str(Path(sys.executable).parent / "mpirun")
UNDER_MPI = [
    pytest.mark.mpi,
    pytest.mark.skipif(not os.path.exists(MPIRUN), reason="no mpirun in the environment; scripts/env dev installs one"),
]
"""Marks of tests that start it."""
DEADLINE_SECONDS = 240  # far beyond what any run takes: only a hang gets there

LONG = ("train.epochs=1000", "timeout_seconds=120")
"""For `small_run`: it would go on for minutes."""
PYTORCH = "reader.data_loader=pytorch"
"""For `small_run`, in tests of the real loader and its worker processes: importing torch takes two CPU seconds."""
CEILING = "metric.ceiling_seconds=0.2"
"""For `small_run`, in tests of what follows from a ceiling, or that end a run in any of its parts."""
SLOW = ("reader.preprocess_time=0.1", "reader.preprocess=sleep", "train.epochs=1", "metric.au=0.9")
"""Of a small run that does not pass."""


def small_run(folder: Path, dataset: Path, *changes: str) -> list[str]:
    """Overrides of a run of 3 ranks that takes a second of training: 8 steps an epoch, 2 epochs, readers as threads."""
    return [
        "workload=default",
        f"dataset.data_folder={dataset}",
        "dataset.num_files_train=48",
        "dataset.record_length_bytes=20000",
        "dataset.record_length_bytes_stdev=5000",
        f"output.folder={folder}",
        "reader.batch_size=2",
        "reader.read_threads=2",
        "reader.data_loader=threads",
        "train.computation_time=0.02",
        "metric.ceiling_seconds=0",
        "metric.au=0.02",  # these tests are not about speed: a busy machine passes them too
        "metric.cached=true",  # small datasets are served by memory
        "output.report=false",
        "ranks=3",
        *changes,
    ]


def without(words: Iterable[str], *settings: str) -> list[str]:
    """Return the overrides but those of settings, or of whole sections."""
    return [word for word in words if word.partition("=")[0] not in settings and word.partition(".")[0] not in settings]


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    status: int
    out: str
    err: str

    @property
    def ran(self) -> bool:
        """It trained to its end: passed, or with a verdict that a busy machine left open or turned."""
        return self.status in COMPLETED

    def assert_ran(self) -> None:
        """Fail with what the run said on stderr unless it trained to its end."""
        assert self.ran, self.err

    def assert_ended(self, status: int, *messages: str) -> None:
        """Fail unless the command ended with this status, said these messages on stderr, and showed no traceback."""
        assert self.status == status, self.err
        assert "Traceback" not in self.err
        for message in messages:
            assert message in self.err


def dlemu(*arguments: str, launcher: Sequence[str] = (), cwd: Path | None = None, **environment: str) -> Ended:
    """Run `dlemu` to its end."""
    return wait(start(*arguments, launcher=launcher, cwd=cwd, **environment))


def start(
    *arguments: str, program: str = DLEMU, launcher: Sequence[str] = (), cwd: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Start `dlemu`, or its other program, in a session of its own; an MPI launcher's count stands in for ranks=N."""
    if any(os.path.basename(word) in ("mpirun", "mpiexec", "srun") for word in launcher):
        arguments = tuple(without(arguments, "ranks"))
    whole = os.environ | environment
    if program in (DLEMU, DLIO) and not launcher:
        loaders = [word for word in arguments if word.startswith("reader.data_loader=")]
        reads = program == DLIO or arguments[0] in ("train", "size", "sweep")
        from_zygote = zygote(torch=reads and loaders[-1:] in ([], [PYTORCH]))
        if from_zygote.can_run(whole):
            return Forked(from_zygote, [program, *map(str, arguments)], str(cwd or Path.cwd()), whole)
    return subprocess.Popen(
        [*launcher, program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=whole,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


def dlemu_with(folder: Path, constant: str, value: float) -> str:
    """Write a program that is `dlemu` with another value of a constant (`module.NAME`); return its path."""
    program, module = folder / "dlemu", constant.rpartition(".")[0]
    program.write_text(
        f"#!{sys.executable}\nimport {module}\n{constant} = {value}\nfrom dlemu.__main__ import main\nmain()\n"
    )
    program.chmod(0o755)
    return str(program)


def wait(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end; a run that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the run hung\n{out}\n{err}") from None
    return Ended(process.returncode, out, err)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition holds and return its value."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def training(folder: Path, ranks: int = 3) -> bool:
    """Say whether every rank of a run has logged a step."""
    logs = list((folder / "live").glob("rank_*.steps"))
    return len(logs) == ranks and all(len(read_log(str(log))) > 1 for log in logs)


def until_it_trains(process: subprocess.Popen[str], folder: Path, ranks: int = 3) -> list[psutil.Process]:
    """Wait until every rank has logged a step, or the run is over; return its descendants."""
    until(lambda: training(folder, ranks) or process.poll() is not None, "the ranks to train")
    return family(process)


def summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary.json."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def assert_one_run(folder: Path, per_host: Sequence[int], hosts: Sequence[str] = ()) -> dict[str, Any]:
    """Fail unless a run is complete with so many ranks on each host; return its summary."""
    found, nodes = summary(folder), json.loads((folder / "facts.json").read_text())["journal"]["rank_nodes"]
    assert found["complete"] is True
    assert [nodes.count(node) for node in range(max(nodes) + 1)] == per_host
    assert set(found["each_sample_once"]) == {True}
    assert not hosts or [host["host"] for host in found["environment"]["hosts"]] == list(hosts)
    return found


def reported(folder: Path) -> Run:
    """Return a run that failed, once `dlemu report` reads it: what is left of it may still be ending."""
    until(lambda: dlemu("report", str(folder)).status == 0, "dlemu report")
    return read_run(str(folder))


def steps(folder: Path) -> Any:
    """Return a run's steps as a structured array."""
    table = pq.read_table(folder / "steps.parquet")
    return np.rec.fromarrays([table[name].to_numpy() for name in table.column_names], names=table.column_names)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return all living descendants of a run."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def maps(process: psutil.Process, name: str) -> bool:
    """Say whether a process has a file mapped whose path has `name` in it."""
    try:
        return any(name in region.path for region in process.memory_maps())
    except psutil.Error:
        return False


def rank_of(parent: int, rank: int) -> psutil.Process:
    """Return the forked process of a rank that trains: process ids start over now and then, so they tell no order."""
    (found,) = (one for one in psutil.Process(parent).children() if maps(one, f"rank_{rank:05}.steps"))
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    """Fail when one of the processes outlives its run."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [f"{process.pid} {process.name()}" for process in alive] == []
