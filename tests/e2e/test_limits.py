"""What the kernel takes from a run: its memory by a control group's limit, its CPU time by a quota."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.harness import (
    CEILING,
    DEADLINE_SECONDS,
    PYTORCH,
    dlemu,
    rank_of,
    small_run,
    start,
    steps,
    summary,
    training,
    until,
    wait,
    without,
)

pytestmark = [pytest.mark.slow, pytest.mark.root]

GROUPS = Path("/sys/fs/cgroup")
HOG = """
import sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
open("/proc/self/oom_score_adj", "w").write("500")
held = []
while " 0" in open(sys.argv[1] + "/memory.oom_control").read().splitlines()[-1]:
    held.append(bytearray(b"x") * (1 << 20))
"""
"""Takes memory of a group until the kernel has killed one of it."""


@contextlib.contextmanager
def group(controller: str) -> Iterator[Path]:
    folder = GROUPS / controller / f"dlemu-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield folder
    finally:
        for process in map(int, (folder / "cgroup.procs").read_text().split()):
            psutil.Process(process).kill()
        until(lambda: not (folder / "cgroup.procs").read_text(), "the end of the group's processes")
        folder.rmdir()


def inside(folder: Path) -> list[str]:
    return ["sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$0" "$@"']


def starve(folder: Path, victim: psutil.Process, *, spare_mib: int = 64) -> re.Pattern[str]:
    """Let the kernel kill a process because the memory of its group is used up; return how that is told.

    In the moment until what it had is free the kernel may want another: who takes the memory is the next.
    """
    Path(f"/proc/{victim.pid}/oom_score_adj").write_text("1000")
    limit = int((folder / "memory.usage_in_bytes").read_text()) + (spare_mib << 20)
    (folder / "memory.limit_in_bytes").write_text(str(limit))
    hog = subprocess.run([sys.executable, "-c", HOG, str(folder)], check=False, timeout=120)
    assert hog.returncode in (0, -signal.SIGKILL)
    return re.compile(
        r"the kernel has killed [12] process(es)? of this container or job \(control group\) at its limit of "
        f"{limit / 2**20:,.0f} MiB"
    )


@pytest.mark.parametrize("victim", ["worker", "rank"])
def test_whom_the_out_of_memory_killer_takes_is_named_with_the_limit(
    victim: str, dataset: Path, tmp_path: Path
) -> None:
    settings = small_run(tmp_path / "run", dataset, "train.epochs=1000", PYTORCH)
    with group("memory") as folder:
        process = start("train", *settings, launcher=inside(folder))
        until(lambda: training(tmp_path / "run"), "the first steps")
        rank = rank_of(process.pid, 1)
        told = starve(folder, rank if victim == "rank" else rank.children()[-1])
        ended = wait(process)
    who = {"worker": " of rank 1 (process", "rank": "rank 1 (process"}[victim]
    last = " ".join(ended.err.splitlines()[-2:])
    assert who in last
    assert told.search(last), ended
    assert ended.status in (3, 137)
    assert summary(tmp_path / "run")["complete"] is False


def test_memory_that_a_control_group_does_not_have_is_refused_before_the_ranks_start(
    dataset: Path, tmp_path: Path
) -> None:
    settings = small_run(tmp_path / "run", dataset, "dataset.record_length_bytes_resize=200000000")
    with group("memory") as folder:
        (folder / "memory.limit_in_bytes").write_text(str(1 << 30))
        ended = dlemu("train", *settings, launcher=inside(folder))
    ended.assert_ended(2, "of the 1,024 MiB of this container or job (control group)")


def test_a_quota_of_cpu_time_is_named_as_what_limits(dataset: Path, tmp_path: Path) -> None:
    """A tenth of a core for three ranks that compute 2 ms a step."""
    changes = ("train.computation_time=0.002", "train.epochs=20", CEILING)
    settings = small_run(tmp_path / "run", dataset, *changes)
    with group("cpu") as folder:
        (folder / "cpu.cfs_quota_us").write_text("30000")
        (folder / "cpu.shares").write_text("262144")  # before all others on the host: the quota holds it back, not they
        ended = dlemu("train", *settings, launcher=inside(folder))
    assert ended.ran, ended.err
    limit = summary(tmp_path / "run")["limited_by"]
    assert (limit["what"], "cpu_quota" in [one["code"] for one in limit["findings"]]) == ("host CPU", True)
    assert "host CPU" in ended.out


JUMPS = """
import itertools, sys, time
real, jumps = time.time, itertools.cycle((0, 3600, -86400, 1e7))
time.time = lambda: real() + next(jumps)
time.time_ns = lambda: int(time.time() * 1e9)
from dlemu.__main__ import main
main()
"""
"""dlemu on a host whose clock is set again and again."""


def test_a_clock_that_jumps_moves_no_measurement(dataset: Path, tmp_path: Path) -> None:
    settings = small_run(tmp_path / "run", dataset)
    wait(start("-c", JUMPS, "train", *settings, program=sys.executable)).assert_ran()
    assert 0 <= summary(tmp_path / "run")["metrics"]["au_percent"]["mean"] <= 100
    rows = steps(tmp_path / "run")
    assert 0 < int(rows["met_ns"].max() - rows["free_ns"].min()) < DEADLINE_SECONDS * 1e9


def test_runs_that_begin_at_once_each_have_their_own_results(dataset: Path, tmp_path: Path) -> None:
    settings = without(small_run(tmp_path, dataset, "train.epochs=1", "ranks=1"), "output.folder")
    runs = [start("train", *settings, cwd=tmp_path) for _ in range(3)]
    ends = [wait(run) for run in runs]
    assert all(ended.ran for ended in ends), [ended.err for ended in ends]
    folders = {line for ended in ends for line in ended.out.splitlines() if line.startswith("  more ")}
    assert len(folders) == len(runs)
