"""From cells and levels to probe.json: what is asked of whom, and what is kept of it."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.cli.probe import command
from dlemu.config import load
from dlemu.jobs.probe import requests
from dlemu.jobs.probe import run as run_probe
from dlemu.jobs.probe.probe_file import probe_file
from dlemu.jobs.probe.requests import _cell_of_requests, choose_engine, measure_cell
from dlemu.jobs.probe.result import CellSpec, Latency, ProbeCell, Requests
from dlemu.jobs.training.evict import treatment_of
from dlemu.machine.environment import describe_folder
from dlemu.results.kinds import read_result
from dlemu.runner.events import Doing
from tests.probing.conftest import MIB, READ, Install
from tests.shown import details

LATENCY = Latency(mean=1.0, p50=1.0, p90=1.0, p99=1.0, p999=1.0, max=1.0)


def cell(wanted: CellSpec = READ, mb_per_second: float = 100.0) -> ProbeCell:
    iops = mb_per_second * 1e6 / wanted.size_bytes
    rates: dict[str, Any] = {"mb_per_second": mb_per_second, "iops": iops, "cpu_seconds_per_gb": 0.5}
    return ProbeCell(**asdict(wanted), seconds=2.0, latency_ms=LATENCY, **rates)


def test_a_bucket_is_refused_with_what_measures_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"s3://some is no folder or file: .*dlemu predict"):
        run_probe.probe_target("s3://some", folder=str(tmp_path / "r"))
    assert not list(tmp_path.iterdir())


def test_a_cell_is_of_the_requests_that_count_and_its_cpu_time_of_all() -> None:
    """Of two jobs; those that ended while it settled have a latency of their own, and are left out."""
    ends = np.concatenate([np.arange(100) * 5_000_000, 500_000_000 + np.arange(1, 201) * 10_000_000])
    early = ends < 500_000_000
    latency = np.where(early, 90_000_000, 4_000_000)
    part = Requests(ends, latency, cpu_seconds=0.3)
    found = _cell_of_requests(replace(READ, jobs=2), 0, [part, part], 2.0)
    assert (found.access, found.size_bytes, found.depth, found.jobs) == ("randread", 4096, 8, 2)
    assert found.seconds == pytest.approx(2.0, abs=0.01)
    assert found.iops == pytest.approx(200, rel=0.01)
    assert found.mb_per_second == pytest.approx(200 * 4096 / 1e6, rel=0.01)
    assert found.latency_ms.max == pytest.approx(4)
    assert found.cpu_seconds_per_gb == pytest.approx(0.6 / (600 * 4096 / 1e9))
    late = _cell_of_requests(READ, 7_000_000_000, [Requests(ends + 7_000_000_000, latency, cpu_seconds=0.3)], 2.0)
    assert late.iops == pytest.approx(100, rel=0.01), "time is counted from the start"


@pytest.mark.parametrize(
    ("asked", "fio", "engine"),
    [("auto", True, "fio"), ("auto", False, "threads"), ("fio", True, "fio"), ("threads", True, "threads")],
)
def test_an_engine_is_the_one_that_is_asked_for_or_the_best_that_is_here(
    asked: str, fio: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/fio" if fio and name == "fio" else None)
    assert choose_engine(asked) == engine
    if not fio:
        with pytest.raises(DlemuError, match="apt-get install fio"):
            choose_engine("fio")


FIO = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/asked"
idle='{"io_bytes": 0, "runtime": 0, "bw_bytes": 0, "iops": 0, "slat_ns": {"mean": 0}, "lat_ns": {"mean": 0, "max": 0},'
busy='{"io_bytes": 4e9, "runtime": 2000, "bw_bytes": 2e9, "iops": 500, "slat_ns": {"mean": 0},'
idle="$idle "'"clat_ns": {}}' busy="$busy "'"lat_ns": {"mean": 1e6, "max": 9e6}, "clat_ns": {}}' read=$busy write=$idle
case "$*" in *=randwrite*|*=write*) read=$idle write=$busy; esac
echo "fio: a warning before the answer"
echo '{"jobs": [{"usr_cpu": 10, "sys_cpu": 30, "read":' "$read" ', "write":' "$write" '}]}'
"""


@pytest.mark.parametrize(
    ("access", "increment"), [("randread", None), ("read", "32768"), ("write", "32768"), ("randwrite", None)]
)
def test_fio_is_asked_for_the_cell(access: Any, increment: str | None, install_fio: Install, tmp_path: Path) -> None:
    folder = install_fio(FIO)
    wanted = CellSpec(access=access, size_bytes=4096, depth=16, jobs=3)
    target = tmp_path / "read: this #1"
    target.touch()
    found = measure_cell(wanted, str(target), 100_000, 1.5, "fio")
    assert (found.access, found.depth, found.jobs, found.seconds, found.mb_per_second) == (access, 16, 3, 2.0, 2000.0)
    words = dict(word.removeprefix("--").split("=", 1) for word in (folder / "asked").read_text().splitlines())
    assert words.pop("filename").startswith("/proc/self/fd/"), "fio takes paths apart at some signs"
    assert words.pop("name")
    assert words == {
        "rw": access, "iodepth": "16", "numjobs": "3", "bs": "4096", "size": "98304", "direct": "1",
        "ioengine": "libaio", "time_based": "1", "runtime": "1500ms", "ramp_time": "500ms", "norandommap": "1",
        "randrepeat": "0", "group_reporting": "1", "thread": "1", "output-format": "json",
        "refill_buffers": str(int(access.endswith("write"))),  # else a drive may find all writes equal
    } | ({} if increment is None else {"offset_increment": increment})  # fmt: skip


@pytest.mark.parametrize(
    ("script", "said", "kind"),
    [
        ("echo no such device >&2; exit 3", "ended with status 3: no such device", UserError),
        ("echo odd >&2; kill -KILL $$", r"\(process \d+\) was killed by SIGKILL.*: odd", DlemuError),
        (r'echo "fio: error=EIO"; printf "{\n}\n"; exit 1', "ended with status 1: fio: error=EIO$", UserError),
    ],
)
def test_what_fio_says_of_its_end_is_told_without_its_report(
    script: str, said: str, kind: type[DlemuError], file: Path, install_fio: Install
) -> None:
    install_fio(f"#!/bin/sh\n{script}\n")
    with pytest.raises(DlemuError, match=f"fio {said}") as failed:
        measure_cell(READ, str(file), MIB, 0.1, "fio")
    assert failed.type is kind


def test_each_job_has_its_part_and_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that it settles comes on top of the cell's."""
    asked: list[Any] = []

    def answered(work: Any, ranges: Any, *_: Any, most_seconds: float, **__: Any) -> list[tuple[int, Requests]]:
        asked.append((most_seconds, ranges))
        ends = np.array([600_000_000, 700_000_000])
        return [(0, Requests(ends, ends, 0.1)) for _ in ranges]

    monkeypatch.setattr(requests, "run_crew", answered)
    wanted = CellSpec(access="read", size_bytes=4096, depth=3, jobs=2)
    assert measure_cell(wanted, "/dev/some", MIB, 1.5, "threads").jobs == 2
    ((seconds, ranges),) = asked
    assert seconds > 1.5
    assert ranges == [range(MIB // 2), range(MIB // 2, MIB)]
    asked.clear()
    measure_cell(replace(wanted, access="randread"), "x", MIB, 1.5, "threads")
    assert asked[0][1] == [range(MIB)] * 2, "random jobs share the whole file"


def probed(folder: Path, target: Path | None = None, result: str = "r", **asked: Any) -> Any:
    """Return what a probe of a folder, or of a target in it, says; its results are in another folder there."""
    chosen: dict[str, Any] = {"engine": "threads", "file_bytes": MIB} | asked
    return run_probe.probe_target(str(target or folder), folder=str(folder / result), **chosen)[0]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Cells that nobody has to wait for; each call's arguments."""
    calls: list[tuple[Any, ...]] = []

    def measure(wanted: CellSpec, path: str, size_bytes: int, seconds: float, engine: str) -> ProbeCell:
        calls.append((wanted, path, size_bytes, seconds, engine, os.path.getsize(path)))
        return cell(wanted, 1000.0 * wanted.depth * (3 if wanted.writes else 1))

    monkeypatch.setattr(run_probe, "measure_cell", measure)
    return calls


def test_every_cell_of_the_grid_is_measured_and_kept_at_once(measured: list[Any], tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    grid: dict[str, Any] = {"accesses": ("randread", "write"), "sizes": (4096, 8192), "depths": (1, 4), "jobs": (2,)}
    kept: list[Any] = []

    def look(event: Any) -> None:
        kept.append((event.part, read_result(str(tmp_path / "results"))))

    answer = probed(tmp_path, tmp_path / "place", "results", **grid, seconds=0.7, file_bytes=3 * MIB, on_event=look)
    assert [(one.access, one.size_bytes, one.depth) for one in answer.cells] == [
        (access, size, depth) for access in ("randread", "write") for size in (4096, 8192) for depth in (1, 4)
    ]
    assert {call[2:] for call in measured} == {(3 * MIB, 0.7, "threads", 3 * MIB)}
    assert [len(told.cells) for _, told in kept] == list(range(1, 9))
    assert not any(told.complete for _, told in kept)
    assert tuple(one for one, _ in kept) == answer.cells
    assert read_result(str(tmp_path / "results")) == answer
    assert answer.complete
    assert (answer.target, answer.engine) == (str(tmp_path / "place"), "threads")
    assert answer.environment.storage.folder == str((tmp_path / "place").resolve())
    assert not list((tmp_path / "place").iterdir())


def test_writes_are_repeated_until_they_are_steady(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fresh drive: each round 10 % slower, until the last ones are alike."""
    rates = [1000.0 * 0.9**turn for turn in range(8)] + [430.0] * 20
    turns = iter(rates)
    monkeypatch.setattr(run_probe, "measure_cell", lambda wanted, *_: cell(wanted, next(turns)))
    events: list[Any] = []
    grid: dict[str, Any] = {"accesses": ("write", "randread"), "sizes": (MIB,), "depths": (1,)}
    answer = probed(tmp_path, **grid, steady=True, on_event=events.append)
    doing = [event for event in events if isinstance(event, Doing)]
    written, read = answer.cells
    assert written.mb_per_second == pytest.approx(np.mean(rates[len(doing) - 5 : len(doing)]))
    assert written.iops == pytest.approx(written.mb_per_second * 1e6 / MIB)
    assert (written.steady, read.steady, answer.issues) == (True, None, ())
    assert doing[0].what == "round 1 of at most 25: 1,000.0 MB/s"
    assert 8 < len(doing) < 14
    with pytest.raises(UserError, match="--steady is for writes"):
        probed(tmp_path, result="s", steady=True)


@pytest.mark.parametrize(
    ("steady", "words"),
    [(True, "not steady after 25 rounds: 1 write"), (False, "not known whether writes had reached their steady state")],
)
def test_writes_that_are_not_known_to_be_steady_say_so(
    steady: bool, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = itertools.cycle([100.0, 200.0])
    monkeypatch.setattr(run_probe, "measure_cell", lambda wanted, *_: cell(wanted, next(turns)))
    answer = probed(tmp_path, accesses=("randwrite",), sizes=(4096,), depths=(1,), steady=steady)
    (written,) = answer.cells
    assert written.steady is (False if steady else None)
    (issue,) = answer.issues
    assert words in issue


def test_a_full_disk_of_results_neither_ends_nor_hides_a_probe(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_probe, "save_answer", Mock(side_effect=SpaceError("the disk is full")))
    words = f"--sizes 4k --depths 1,4 --engine threads --file-size 1m --output {tmp_path}/r"
    ended = CliRunner().invoke(command, [str(tmp_path), *words.split()])
    assert isinstance(ended.exception, SpaceError)
    assert len(measured) == 2
    assert len(re.findall("\n +randread", ended.stdout)) == 3, "a line for each"
    assert re.search("\n +results +not saved\n", ended.stdout)
    assert "--drive" not in ended.stdout, "nothing is there to predict from"


@pytest.mark.usefixtures("measured")
def test_what_a_drive_feeds_is_asked_next_where_it_was_read(tmp_path: Path) -> None:
    words = f"{tmp_path} --sizes 4k --depths 1 --engine threads --file-size 1m --output {tmp_path}/"
    for access, has_read in (("randread", True), ("write", False)):
        ended = CliRunner().invoke(command, [*(words + access).split(), "--rw", access])
        assert ("--drive" in ended.stdout) == has_read


def test_a_file_is_large_enough_for_each_job_and_one_that_is_there_must_be(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_probe, "FILE_BYTES", 4096)
    grid: dict[str, Any] = {"sizes": (MIB,), "depths": (1,), "jobs": (3,)}
    probed(tmp_path, **grid, file_bytes=None)
    assert measured[0][2] == 3 * MIB
    with pytest.raises(UserError, match=r"wanted at least 3\.1 MB"):
        probed(tmp_path, result="t", **grid, file_bytes=4096)
    short = tmp_path / "short"
    short.write_bytes(bytes(3 * MIB - 512))
    with pytest.raises(UserError, match=r"3\.1 MB is too small for the largest request of each job"):
        probed(tmp_path, short, "s", **grid, file_bytes=None)
    assert short.stat().st_size == 3 * MIB - 512


def test_requests_are_whole_sectors(measured: list[Any], tmp_path: Path) -> None:
    for size_bytes in (0, 256, 768):
        with pytest.raises(UserError, match="multiple of 512"):
            probed(tmp_path, sizes=(size_bytes,), depths=(1,))
    assert measured == []
    probed(tmp_path, sizes=(512,), depths=(1,))


def test_the_file_that_is_made_has_no_two_equal_pages(tmp_path: Path) -> None:
    """A drive that compresses, or finds what it has already, would be measured as a faster one."""
    size = 17 * MIB + 1024
    with probe_file(str(tmp_path), size) as made:
        data = Path(made).read_bytes()
    assert len(data) == size
    pages = [data[at : at + 4096] for at in range(0, size, 4096)]
    assert len(set(pages)) == len(pages)
    assert len(set(pages[0])) > 200, "and they are no zeros"


@pytest.mark.parametrize(
    ("words", "total_bytes", "how"),
    [
        ([], 1, "evicted"),
        ([], 1 << 60, "large"),
        (["metric.cached=true"], 1, "cached"),
        (["reader.odirect=true"], 1, "direct"),
        (["storage.storage_type=s3", "storage.storage_root=b"], 1 << 60, "remote"),
    ],
)
def test_how_reads_of_a_workload_are_kept_out_of_the_page_cache(
    words: list[str], total_bytes: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setattr("datagen.storage.posix.Storage.memory_kind", lambda self, path: "")
    workload = load(["workload=unet3d", f"dataset.data_folder={tmp_path}", *words])
    assert treatment_of(workload, total_bytes) == how


@pytest.mark.parametrize("name", ["probe.json", "summary.json", "predict.json"])
def test_a_folder_with_another_result_is_left_alone(name: str, measured: list[Any], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / name).write_text(mine := '{"schema_version": 1}')
    with pytest.raises(UserError, match=r"/r holds another result, .*; set --output to a new folder"):
        probed(tmp_path, sizes=(4096,))
    assert (tmp_path / "r" / name).read_text() == mine
    assert (measured, os.listdir(tmp_path)) == ([], ["r"])


def test_a_file_that_is_there_is_read_in_all_its_size(measured: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(5 * 4096))
    answer = probed(tmp_path, file, sizes=(4096,), depths=(1,))
    assert [call[1:3] for call in measured] == [(str(file), 5 * 4096)]
    assert file.stat().st_size == 5 * 4096
    assert answer.issues == ()
    place, storage = describe_folder(str(tmp_path)), answer.environment.storage
    assert replace(storage, free_bytes=place.free_bytes) == place, "of the folder where it lies"


def test_a_probe_of_memory_says_that_it_is_none_of_a_storage(
    measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_probe, "describe_folder", lambda path: replace(describe_folder(path), file_system="tmpfs"))
    answer, folder = probed(tmp_path), str(tmp_path / "r")
    said = f"{answer.environment.storage.folder} is tmpfs, which is memory: no storage was measured"
    assert answer.issues == (said,)
    assert said in details("probe", answer, folder)
