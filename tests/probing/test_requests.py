"""Requests are made as asked and measured as fio measures them, on a file of the probe's own, whoever is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

import dlemu
from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.jobs.probe import requests
from dlemu.jobs.probe.probe_file import probe_file
from dlemu.jobs.probe.requests import _cell_of_requests, measure_cell, open_target, run_threads
from dlemu.jobs.probe.result import Engine, Requests
from dlemu.jobs.probe.run import probe_target
from dlemu.jobs.training import pattern
from dlemu.loaders.loader_base import BatchMaker, LoaderSpec
from tests.e2e.harness import assert_gone, until
from tests.probing.conftest import MIB, READ, Install

WRITE = replace(READ, access="randwrite")
LONG_SECONDS = 300.0
NO_FIO = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


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
    written = [at for at in range(0, MIB, size) if some[at : at + size] != before[at : at + size]]
    assert written == [MIB // 4, MIB // 4 + size]
    if random:
        run_threads(replace(WRITE, size_bytes=size), str(file), middle, 0.2)
        after = file.read_bytes()
        assert (after[: MIB // 4], after[3 * MIB // 4 :]) == (before[: MIB // 4], before[3 * MIB // 4 :])
        assert after != some
        pages = {after[at : at + 4096] for at in range(0, MIB, 4096)}
        assert len(pages) == MIB // 4096, "none is alike, or storage that deduplicates would be measured too fast"


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


HOLDS = """
import sys
from dlemu.jobs.probe.probe_file import probe_file
with probe_file(sys.argv[1], 5000) as path:
    print(path, flush=True)
    input()
"""


def test_what_a_killed_probe_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", HOLDS, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as probe:
        assert probe.stdout is not None
        path = Path(probe.stdout.readline().strip())
        others = [path.with_name(path.name.replace("probe-", "probe-0")), tmp_path / f"{path.name}.txt"]
        for other in others:
            other.write_bytes(b"of another host, or the user's")
        with probe_file(str(tmp_path), 5000):
            assert path.stat().st_size == 5000, "a probe that lives keeps its file"
        probe.send_signal(signal.SIGKILL)
    with probe_file(str(tmp_path), 5000):
        assert not path.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("kind", ["/dev/null", "pipe", "loop", "gone"])
def test_an_odd_target_is_named(tmp_path: Path, kind: str) -> None:
    target = kind if kind.startswith("/") else str(tmp_path / kind)
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "loop":
        os.symlink(target, target)
    words = rf"{target} (is a|does not exist).*wanted a folder of the storage, or a file to read"
    with pytest.raises(UserError, match=words):
        probe_target(target, folder=str(tmp_path / "out"), seconds=0.1, depths=(1,))


def test_what_is_written_to_is_no_link(tmp_path: Path) -> None:
    users, planted = tmp_path / "mine", tmp_path / "planted"
    users.write_bytes(b"mine")
    planted.symlink_to(users)
    with pytest.raises(DlemuError, match="planted can't be opened"):
        open_target(str(planted), writes=True)
    os.close(open_target(str(planted), writes=False, flags=0))


FIO = """#!{python}
import os, sys
name = next(word.partition("=")[2] for word in sys.argv if word.startswith("--filename="))
odd = set(name) & set(":#;\\\\ ")
sys.exit(f"inode {{os.stat(name).st_ino}} of {{name}}" + (" by a name to be parsed" if odd else ""))
"""


@pytest.mark.parametrize("name", ["a:b", "a\\:b", "a#b;c", " a ", "plain"])
def test_fio_gets_the_file_itself_whatever_its_name(tmp_path: Path, install_fio: Install, name: str) -> None:
    """fio splits names at colons, and takes what follows a # or ; for a comment: it would make another file."""
    install_fio(FIO.format(python=sys.executable))
    path = tmp_path / name
    path.write_bytes(bytes(MIB))
    with pytest.raises(DlemuError) as raised:
        measure_cell(READ, str(path), MIB, 0.1, "fio")
    assert f"inode {path.stat().st_ino} of {path}".rstrip() in str(raised.value)
    assert "to be parsed" not in str(raised.value)
    assert os.listdir(tmp_path) == [name]


def test_a_file_system_that_can_only_be_read_is_a_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one that is mounted read-only, removing a name that is not there fails with EROFS too, not ENOENT."""
    refuse = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(SpaceError, match="can't be written: Read-only file system; name another folder"):
        probe_file(str(tmp_path), 5000).__enter__()


def test_the_file_is_gone_if_ctrl_c_comes_while_it_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.open

    def interrupted(path: str, flags: int, mode: int = 0o777) -> int:
        os.close(create(path, flags, mode))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe_file(str(tmp_path), 5000).__enter__()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failure", [None, UserError("full"), DlemuError("reading failed"), KeyboardInterrupt()])
def test_a_file_that_a_failing_disk_keeps_is_named(
    failure: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "" if failure is None else f"{failure}\n"
    probe = probe_file(str(tmp_path), 5000)
    path = probe.__enter__()
    monkeypatch.setattr(os, "unlink", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    if isinstance(failure, KeyboardInterrupt):
        assert not probe.__exit__(type(failure), failure, None), "it goes on"
        return
    with pytest.raises(DlemuError) as raised:
        probe.__exit__(type(failure) if failure else None, failure, None)
    assert raised.type is (UserError if failure is None else type(failure)), "the exit status is the failure's"
    assert str(raised.value).startswith(f"{said}{path} can't be removed: Input/output error; it is left")


# Somebody kills what measures: nobody is left behind or waited for


def descendants(before: set[psutil.Process]) -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if process not in before]


def kill_first(before: set[psutil.Process], count: int) -> list[psutil.Process]:
    """Wait until this process has `count` more descendants than before, and kill the first; return all of these."""
    until(lambda: len(descendants(before)) == count, f"{count} processes")
    everyone = descendants(before)
    everyone[0].kill()
    return everyone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "count", "said"),
    [
        pytest.param("fio", 1, r"fio \(process \d+\) was killed by SIGKILL", marks=NO_FIO),
        pytest.param("threads", 2, r"job [01] \(process \d+\) was killed by SIGKILL"),
    ],
)
def test_who_makes_requests_is_killed(engine: Engine, count: int, said: str, file: Path) -> None:
    killed = ThreadPoolExecutor(1).submit(kill_first, set(psutil.Process().children(recursive=True)), count)
    with pytest.raises(DlemuError, match=said):
        measure_cell(replace(READ, depth=2, jobs=2), str(file), MIB, LONG_SECONDS, engine)
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


def test_requests_that_never_end_are_given_up(
    file: Path, install_fio: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fio("#!/bin/sh\nexec sleep 3600\n")
    monkeypatch.setattr(requests, "_EXTRA_SECONDS", 0.2)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(DlemuError, match=r"did not end within .* s: check the storage"):
        measure_cell(READ, str(file), MIB, 0.1, "fio")
    assert descendants(before) == []


@pytest.mark.slow
def test_a_reader_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"dataset.data_folder": str(tmp_path / "data"), "dataset.format": "npy", "dataset.num_files_train": 400}
    settings |= {"dataset.record_length_bytes": 20_000, "reader.data_loader": "threads", "reader.batch_size": 1}
    dlemu.datagen(settings)
    settings |= {"train.computation_time": 0.02, "ranks": 1, "output.folder": str(tmp_path / "predicted")}
    before = set(psutil.Process().children(recursive=True))

    def second_is_killed(spec: LoaderSpec, reader: int) -> BatchMaker:
        if reader == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return BatchMaker(spec, reader)

    monkeypatch.setattr(pattern, "BatchMaker", second_is_killed)
    with pytest.raises(DlemuError, match=r"reader 1 \(process \d+\) was killed by SIGKILL"):
        dlemu.predict(settings | {"metric.cached": True})
    assert descendants(before) == []
    assert not (tmp_path / "predicted" / "predict.json").exists(), "the levels before are no whole answer"
