"""Requests are made as asked, measured as fio measures them, and nothing is written that is not the probe's own."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import SpaceError, UserError
from dlemu.jobs.probe.requests import _cell_of_requests, cell_of_fio
from dlemu.jobs.probe.result import PROBE, CellSpec, ProbeAnswer
from dlemu.jobs.probe.run import PRESETS, probe_target, read_probe
from dlemu.jobs.probe.thread_reads import Requests, Stream, open_target, run_threads
from dlemu.studies.pages import write_page

MIB = 1 << 20
READ = CellSpec(access="randread", size_bytes=4096, depth=8, jobs=1)
WRITE = replace(READ, access="randwrite")


def stream(path: Path, cell: CellSpec = READ, **changes: Any) -> Stream:
    settings: dict[str, Any] = {"path": str(path), "begin": 0, "end": MIB}
    return Stream(cell=cell, **(settings | changes))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB))
    return path


@pytest.mark.parametrize("writes", [False, True])
def test_requests_begin_and_end_while_they_are_measured(writes: bool, file: Path) -> None:
    began_ns, cpu_seconds = time.monotonic_ns(), time.process_time()
    done = run_threads(stream(file, WRITE if writes else READ), 0.1)
    ended_ns, used_seconds = time.monotonic_ns(), time.process_time() - cpu_seconds
    assert len(done.end_ns) == len(done.latency_ns) >= 8
    assert (done.latency_ns > 0).all()
    assert (done.end_ns - done.latency_ns).min() >= began_ns
    assert began_ns + 100_000_000 <= done.end_ns.max() <= ended_ns, "as long as it was wanted"
    assert 0 <= done.cpu_seconds <= used_seconds
    assert (done.first_byte_ns, done.failed) == (None, 0)


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
    middle = {"begin": MIB // 4, "end": 3 * MIB // 4}
    run_threads(stream(file, replace(WRITE, access="write", size_bytes=size, depth=2), **middle), 0)
    some = file.read_bytes()
    assert [at for at in range(0, MIB, size) if some[at : at + size] != before[at : at + size]] == [
        MIB // 4,
        MIB // 4 + size,
    ]
    if random:
        run_threads(stream(file, replace(WRITE, size_bytes=size), **middle), 0.2)
        after = file.read_bytes()
        assert (after[: MIB // 4], after[3 * MIB // 4 :]) == (before[: MIB // 4], before[3 * MIB // 4 :])
        assert after != some


def test_a_read_beyond_the_end_is_an_error(file: Path) -> None:
    with pytest.raises(UserError, match=rf"^{file}: .*\b0 of 4096 bytes"):
        run_threads(stream(file, begin=MIB, end=2 * MIB), 0.1)


def test_what_fio_says_is_read(tmp_path: Path) -> None:
    side = {
        "io_bytes": 4e9,
        "runtime": 2000,
        "bw_bytes": 2e9,
        "iops": 15258.0,
        "slat_ns": {"mean": 1e4},
        "lat_ns": {"mean": 2.1e6, "max": 9e6},
        "clat_ns": {"percentile": {"50.000000": 1.9e6, "90.000000": 2.5e6, "99.000000": 4e6, "99.900000": 8e6}},
    }
    told = {"jobs": [{"read": side, "write": {}, "usr_cpu": 10.0, "sys_cpu": 30.0}]}
    cell = cell_of_fio(told, CellSpec(access="randread", size_bytes=131072, depth=32, jobs=2))
    assert (cell.access, cell.size_bytes, cell.depth, cell.jobs) == ("randread", 131072, 32, 2)
    assert (cell.seconds, cell.mb_per_second, cell.iops, cell.in_flight) == (2.0, 2000.0, 15258.0, 64)
    assert cell.latency_ms is not None
    assert vars(cell.latency_ms) == pytest.approx(
        {"mean": 2.1, "p50": 1.91, "p90": 2.51, "p99": 4.01, "p999": 8.01, "max": 9.0}, rel=1e-9
    )
    assert cell.cpu_seconds_per_gb == pytest.approx(0.4 * 2 * 2 / 4, rel=1e-9)


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


def test_presets_are_those_of_the_documents() -> None:
    (amax,) = PRESETS["amax"].cells()
    assert (amax.access, amax.size_bytes, amax.depth, amax.jobs) == ("randread", 128 << 10, 32, 1)
    micron = PRESETS["micron-6550"].cells()
    assert {cell.size_bytes for cell in micron} == {4096, 16384, 131072, MIB}
    assert {cell.jobs for cell in micron} == {2**k for k in range(10)}


def test_nothing_of_the_users_is_written(tmp_path: Path, file: Path) -> None:
    writes: dict[str, Any] = {"accesses": ("randwrite",), "sizes": (4096,), "depths": (1,)}
    before = file.read_bytes()
    with pytest.raises(UserError, match="would destroy it"):
        probe_target(str(file), **writes, folder=str(tmp_path / "r1"))
    assert file.read_bytes() == before
    with pytest.raises(UserError, match="multiple of 512"):
        probe_target(str(tmp_path), sizes=(1000,), folder=str(tmp_path / "r3"))
    with pytest.raises(UserError, match="does not exist"):
        probe_target(str(tmp_path / "nowhere"), folder=str(tmp_path / "r4"))
    with pytest.raises(SpaceError, match="GB free"):
        probe_target(str(tmp_path), file_bytes=1 << 60, folder=str(tmp_path / "r5"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "what is refused leaves nothing behind"


@pytest.mark.slow
def test_a_folder_is_probed_and_left_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    grid: dict[str, Any] = {"accesses": ("randread", "write"), "sizes": (4096,), "depths": (4,), "jobs": (2,)}
    answer, folder = probe_target(
        str(place), **grid, seconds=0.2, engine="threads", file_bytes=4 * MIB, folder=str(tmp_path / "results")
    )
    assert not list(place.iterdir())
    assert [(cell.access, cell.in_flight) for cell in answer.cells] == [("randread", 8), ("write", 8)]
    assert all(cell.mb_per_second > 0 and cell.latency_ms for cell in answer.cells)
    again = read_probe(folder)
    assert again == answer
    assert isinstance(again, ProbeAnswer)
    assert stat.S_ISREG(os.stat(os.path.join(folder, PROBE)).st_mode)
    assert "requests in flight" in Path(write_page(folder)).read_text()
    with pytest.raises(UserError, match="holds another result"):
        probe_target(str(place), folder=folder)
