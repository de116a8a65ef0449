"""Requests are made as asked, measured as fio measures them, and nothing is written that is not the probe's own."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import SpaceError, UserError
from dlemu.jobs.probe.requests import _cell_of_requests, open_target, run_threads
from dlemu.jobs.probe.result import CellSpec, Requests
from dlemu.jobs.probe.run import probe_target

MIB = 1 << 20
READ = CellSpec(access="randread", size_bytes=4096, depth=8, jobs=1)
WRITE = replace(READ, access="randwrite")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB))
    return path


@pytest.mark.parametrize("writes", [False, True])
def test_requests_begin_and_end_while_they_are_measured(writes: bool, file: Path) -> None:
    began_ns, cpu_seconds = time.monotonic_ns(), time.process_time()
    done = run_threads(WRITE if writes else READ, str(file), range(MIB), 0.1)
    ended_ns, used_seconds = time.monotonic_ns(), time.process_time() - cpu_seconds
    assert len(done.end_ns) == len(done.latency_ns) >= 8
    assert (done.latency_ns > 0).all()
    assert (done.end_ns - done.latency_ns).min() >= began_ns
    assert began_ns + 100_000_000 <= done.end_ns.max() <= ended_ns, "as long as it was wanted"
    assert 0 <= done.cpu_seconds <= used_seconds


@pytest.mark.parametrize("writes", [False, True])
def test_requests_go_past_the_page_cache(writes: bool, file: Path) -> None:
    descriptor = open_target(str(file), writes=writes)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        assert flags & os.O_DIRECT
        assert flags & os.O_ACCMODE == (os.O_WRONLY if writes else os.O_RDONLY)
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("random", [False, True])
def test_requests_stay_in_their_part_in_order_or_at_random(random: bool, file: Path) -> None:
    """Each of 64 places of the middle half is written; in order the first is the first."""
    before, size = file.read_bytes(), MIB // 128
    middle = range(MIB // 4, 3 * MIB // 4)
    run_threads(replace(WRITE, access="write", size_bytes=size, depth=2), str(file), middle, 0)
    some = file.read_bytes()
    assert [at for at in range(0, MIB, size) if some[at : at + size] != before[at : at + size]] == [
        MIB // 4,
        MIB // 4 + size,
    ]
    if random:
        run_threads(replace(WRITE, size_bytes=size), str(file), middle, 0.2)
        after = file.read_bytes()
        assert (after[: MIB // 4], after[3 * MIB // 4 :]) == (before[: MIB // 4], before[3 * MIB // 4 :])
        assert after != some


def test_a_read_beyond_the_end_is_an_error(file: Path) -> None:
    with pytest.raises(UserError, match=rf"^{file}: .*\b0 of 4096 bytes"):
        run_threads(READ, str(file), range(MIB, 2 * MIB), 0.1)


def test_a_drive_that_answers_in_clumps_has_no_clump_too_many() -> None:
    """100 requests every 100 ms, wherever the clumps lie to the window."""
    for begin_ms in range(0, 100, 9):
        ends = np.repeat(np.arange(begin_ms, 2600, 100) * 1_000_000, 100)
        done = Requests(ends.astype(np.int64), np.full(len(ends), 8_000_000), cpu_seconds=0.1)
        assert _cell_of_requests(READ, 0, [done], 2.0).iops == pytest.approx(1000), begin_ms


def test_requests_longer_than_settling_count_from_the_start() -> None:
    ends = np.array([800, 1600, 2400]) * 1_000_000
    done = Requests(ends, np.full(3, 800_000_000), cpu_seconds=0.1)
    assert _cell_of_requests(READ, 0, [done], 2.0).iops == pytest.approx(1 / 0.8)


def test_nothing_of_the_users_is_written(tmp_path: Path, file: Path) -> None:
    writes: dict[str, Any] = {"accesses": ("randwrite",), "sizes": (4096,), "depths": (1,)}
    before = file.read_bytes()
    with pytest.raises(UserError, match="would destroy it"):
        probe_target(str(file), **writes, folder=str(tmp_path / "r1"))
    assert file.read_bytes() == before
    with pytest.raises(SpaceError, match="GB free"):
        probe_target(str(tmp_path), file_bytes=1 << 60, folder=str(tmp_path / "r5"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "what is refused leaves nothing behind"
