"""The same under a real mpirun: MPICH's, which comes with the development environment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from dlemu.runner.run_folder import request_stop
from tests.e2e.harness import (
    LONG,
    MPIRUN,
    PYTORCH,
    SLOW,
    UNDER_MPI,
    assert_gone,
    assert_one_run,
    dlemu,
    maps,
    reported,
    small_run,
    start,
    steps,
    summary,
    until_it_trains,
    wait,
)

pytestmark = [pytest.mark.slow, *UNDER_MPI]


def test_datagen_and_training_on_mpi_ranks_and_the_verdict_is_the_exit_status(tmp_path: Path) -> None:
    settings = small_run(tmp_path / "run", tmp_path / "data", *SLOW, PYTORCH)
    made = dlemu("datagen", *settings, launcher=[MPIRUN, "-np", "2"])
    assert made.status == 0, made.err
    assert "made 48 files" in made.out
    ended = dlemu("train", *settings, launcher=[MPIRUN, "-np", "3"])
    assert ended.status == 1, ended.err
    assert ended.out.count("  more ") == 1, "one process speaks"
    found = assert_one_run(tmp_path / "run", [3])
    assert (found["ranks"], found["outcome"]) == (3, "fail")
    assert len(steps(tmp_path / "run")) == 3 * 8


@pytest.mark.parametrize("victim", [0, 2, "stand-in"])
def test_what_was_measured_outlives_a_killed_rank(victim: int | str, dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = small_run(folder, dataset, *LONG)
    process = start("train", *settings, launcher=[MPIRUN, "-np", "3"])
    everyone = until_it_trains(process, folder)
    logs = [path.name for path in sorted((folder / "live").glob("rank_*"))]
    assert len(logs) == 3
    mapped: dict[int, int | str] = {
        rank.pid: logs.index(name) for rank in everyone for name in logs if maps(rank, name)
    }
    stand_ins = [pid for pid in _launched(process) if not psutil.Process(pid).children()]
    if victim == "stand-in":
        mapped = dict.fromkeys(stand_ins, victim)
    if victim == 2:
        for pid in stand_ins:
            os.kill(pid, signal.SIGSTOP)
    pid = next(pid for pid, number in mapped.items() if number == victim)
    os.kill(pid, signal.SIGKILL)
    ended = wait(process)
    assert ended.status != 0
    if victim != "stand-in":  # else mpirun kills all, and `live` has what was measured
        assert f"rank {victim} (process {pid}) was killed by SIGKILL" in ended.err
        assert f"kept, marked incomplete, in {folder}: " in ended.err
        assert (folder / "summary.json").exists()
    run = reported(folder)
    assert run.summary.complete is False
    assert run.summary.failure
    assert len(run.rows) >= 6
    assert_gone(everyone)


def _launched(mpirun: subprocess.Popen[str]) -> list[int]:
    """Return the processes that the launcher itself started for the ranks."""
    below = psutil.Process(mpirun.pid).children(recursive=True)
    (proxy,) = [one for one in below if "proxy" in _name(one)]
    return [one.pid for one in proxy.children()]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def test_processes_that_stand_in_import_no_framework_and_stop_no_rank(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", *small_run(folder, dataset, *LONG, PYTORCH), launcher=[MPIRUN, "-np", "3"])
    until_it_trains(process, folder)
    stand_ins = [one for one in map(psutil.Process, _launched(process)) if not one.children()]
    assert len(stand_ins) == 2
    assert not any(maps(one, "libtorch_cpu") for one in stand_ins)
    for one in stand_ins:
        one.suspend()
    request_stop(str(folder / "live"))
    ended = wait(process)
    assert ended.ran, ended.err  # how busy the host is, is none of its promise
    assert summary(folder)["complete"] is True


def test_ranks_that_are_not_alike_run_themselves(dataset: Path, tmp_path: Path) -> None:
    launched, folder = tmp_path / "launched", tmp_path / "run"
    launched.write_text('#!/bin/sh\nulimit -n $((1000 + PMI_RANK)); exec "$@"\n')
    launched.chmod(0o755)
    settings = small_run(folder, dataset, *LONG)
    process = start("train", *settings, launcher=[MPIRUN, "-np", "2", str(launched)])
    until_it_trains(process, folder, ranks=2)
    ranks = [[maps(one, "rank_0000") for one in psutil.Process(pid).children()] for pid in _launched(process)]
    assert [sum(each) for each in ranks] == [1, 1]
    os.killpg(process.pid, signal.SIGINT)
    assert wait(process).status != 0


def test_ctrl_c_to_mpirun_keeps_what_was_measured(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = small_run(folder, dataset, *LONG)
    process = start("train", *settings, launcher=[MPIRUN, "-np", "3"])
    until_it_trains(process, folder)
    os.killpg(process.pid, signal.SIGINT)
    ended = wait(process)
    assert ended.status != 0
    assert "Traceback" not in ended.err
    assert reported(folder).summary.complete is False


def test_a_rank_that_never_comes_holds_nobody_up_for_longer_than_told(dataset: Path, tmp_path: Path) -> None:
    launched = tmp_path / "launched"
    launched.write_text('#!/bin/sh\nif [ "$PMI_RANK" = 1 ]; then exec sleep 3600; fi\nexec "$@"\n')
    launched.chmod(0o755)
    settings = small_run(tmp_path / "run", dataset, "timeout_seconds=2")
    ended = dlemu("train", *settings, launcher=[MPIRUN, "-np", "3", str(launched)])
    assert ended.status != 0
    assert ended.err.count("MPI did not start within 2 s (timeout_seconds)") == 1
    assert "Traceback" not in ended.err


def test_the_time_limit_of_a_workload_file_holds_under_mpi(dataset: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "mine.yaml"
    file.write_text("timeout_seconds: 3\ndataset: {format: npz}\n")
    settings = [f"workload={file}", *small_run(folder, dataset, LONG[0])[1:]]
    process = start("train", *settings, launcher=[MPIRUN, "-np", "3"])
    (rank,) = [one for one in until_it_trains(process, folder) if maps(one, "rank_00002.steps")]
    rank.suspend()
    ended = wait(process)
    assert ended.status != 0
    assert re.search("rank 2 .*did not (arrive at the barrier|continue) within 3 s", ended.err)


def test_another_count_than_the_launchers_is_refused(dataset: Path, tmp_path: Path) -> None:
    settings = small_run(tmp_path / "run", dataset, "++ranks=4")
    ended = dlemu("train", *settings, launcher=[MPIRUN, "-np", "2"])
    assert ended.status == 2, ended.err
    assert ended.err.count("the launcher started 2 ranks, but ranks=4 is given") == 1
    assert "bort" not in ended.err, "the launcher has nothing to add"
