"""Runs the real program as a user does, and checks that nothing is left behind when it ends."""

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
"""Marks of tests that start mpirun."""
DEADLINE_SECONDS = 240  # far longer than any run: only a hang takes so long

LONG = ("train.epochs=1000", "timeout_seconds=120")
"""For `small_run`: a run of minutes, which the test ends."""
PYTORCH = "reader.data_loader=pytorch"
"""For `small_run`, in tests of the real loader and its worker processes: importing torch takes two CPU seconds."""
CEILING = "metric.ceiling_seconds=0.2"
"""For `small_run`, in tests of the ceiling, or tests that end a run in any of its phases."""
SLOW = ("reader.preprocess_time=0.1", "reader.preprocess=sleep", "train.epochs=1", "metric.au=0.9")
"""For `small_run`: a run that does not pass."""


def small_run(folder: Path, dataset: Path, *changes: str) -> list[str]:
    """Return settings of a run of 3 ranks that trains for a second: 2 epochs of 8 steps, with threads as readers."""
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
        "metric.au=0.02",  # low, because tests must pass on a busy machine, too
        "metric.cached=true",  # small datasets are in the page cache
        "output.report=false",
        "ranks=3",
        *changes,
    ]


def without(overrides: Iterable[str], *names: str) -> list[str]:
    """Return the overrides without those of some settings, or of whole sections."""
    return [text for text in overrides if text.partition("=")[0] not in names and text.partition(".")[0] not in names]


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def ran(self) -> bool:
        """Whether it trained to its end: passed, or failed or was undecided, which a busy machine may cause."""
        return self.status in COMPLETED

    def assert_ran(self) -> None:
        """Fail with the run's stderr unless it trained to its end."""
        assert self.ran, self.err

    def assert_ended(self, status: int, *messages: str) -> None:
        """Fail unless the command ended with this status, and with these messages and no traceback on stderr."""
        assert self.status == status, self.err
        assert "Traceback" not in self.err
        for message in messages:
            assert message in self.err


def dlemu(*arguments: str, launcher: Sequence[str] = (), cwd: Path | None = None, **environment: str) -> Ended:
    return wait(start(*arguments, launcher=launcher, cwd=cwd, **environment))


def start(
    *arguments: str, program: str = DLEMU, launcher: Sequence[str] = (), cwd: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Start a program in a session of its own; with an MPI launcher, which sets the number of ranks, omit ranks=N."""
    if any(os.path.basename(word) in ("mpirun", "mpiexec", "srun") for word in launcher):
        arguments = tuple(without(arguments, "ranks"))
    variables = os.environ | environment
    if program in (DLEMU, DLIO) and not launcher:
        loaders = [argument for argument in arguments if argument.startswith("reader.data_loader=")]
        reads = program == DLIO or arguments[0] in ("train", "size", "sweep")
        parent = zygote(torch=reads and loaders[-1:] in ([], [PYTORCH]))
        if parent.can_run(variables):
            return Forked(parent, [program, *map(str, arguments)], str(cwd or Path.cwd()), variables)
    return subprocess.Popen(
        [*launcher, program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=variables,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


def dlemu_with(folder: Path, constant: str, value: float) -> str:
    """Write a program that runs `dlemu` with another value of a constant (`module.NAME`); return its path."""
    program, module = folder / "dlemu", constant.rpartition(".")[0]
    program.write_text(
        f"#!{sys.executable}\nimport {module}\n{constant} = {value}\nfrom dlemu.__main__ import main\nmain()\n"
    )
    program.chmod(0o755)
    return str(program)


def wait(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end; if a run hangs, kill it and fail the test."""
    try:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the run hung\n{out}\n{err}") from None
    return Ended(process.returncode, out, err)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition is true, and return its value."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def training(folder: Path, ranks: int = 3) -> bool:
    """Return whether every rank of a run has logged a step."""
    logs = list((folder / "live").glob("rank_*.steps"))
    return len(logs) == ranks and all(len(read_log(str(log))) > 1 for log in logs)


def until_it_trains(process: subprocess.Popen[str], folder: Path, ranks: int = 3) -> list[psutil.Process]:
    """Wait until every rank has logged a step, or the run is over; return its descendants."""
    until(lambda: training(folder, ranks) or process.poll() is not None, "the ranks to train")
    return family(process)


def summary(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return answer


def assert_one_run(folder: Path, per_host: Sequence[int], hosts: Sequence[str] = ()) -> dict[str, Any]:
    """Fail unless a run is complete, with these numbers of ranks per host; return its summary."""
    answer, nodes = summary(folder), json.loads((folder / "facts.json").read_text())["journal"]["rank_nodes"]
    assert answer["complete"] is True
    assert [nodes.count(node) for node in range(max(nodes) + 1)] == per_host
    assert set(answer["each_sample_once"]) == {True}
    assert not hosts or [host["host"] for host in answer["environment"]["hosts"]] == list(hosts)
    return answer


def reported(folder: Path) -> Run:
    """Return a failed run once `dlemu report` can read it, because some of its processes may still be ending."""
    until(lambda: dlemu("report", str(folder)).status == 0, "dlemu report")
    return read_run(str(folder))


def steps(folder: Path) -> Any:
    table = pq.read_table(folder / "steps.parquet")
    return np.rec.fromarrays([table[name].to_numpy() for name in table.column_names], names=table.column_names)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def maps(process: psutil.Process, name: str) -> bool:
    """Return whether a process maps a file whose path contains `name`."""
    try:
        return any(name in region.path for region in process.memory_maps())
    except psutil.Error:
        return False


def rank_of(parent: int, rank: int) -> psutil.Process:
    """Return the forked process of a training rank, by its step log, because process ids may not be in order."""
    (process,) = (child for child in psutil.Process(parent).children() if maps(child, f"rank_{rank:05}.steps"))
    return process


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [f"{process.pid} {process.name()}" for process in alive] == []
