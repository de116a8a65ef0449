from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dlemu.comm import guardian
from dlemu.comm.guardian import remove_shared_memory, watch
from tests.comm.many_ranks import lives, wait_until


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process, wait for its end and return its wait status."""
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1]


def save(note: Path) -> None:
    note.write_text("saved")


def test_a_killed_rank_is_witnessed_although_its_worker_lives_on(tmp_path: Path) -> None:
    note = tmp_path / "saved"

    def rank() -> None:
        watching = watch(lambda: save(note))
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        (tmp_path / "worker").write_text(str(worker))
        assert watching
        os.kill(os.getpid(), signal.SIGKILL)

    in_a_child(rank)
    assert wait_until(note.exists)
    worker = int((tmp_path / "worker").read_text())
    assert lives(worker)
    os.kill(worker, signal.SIGKILL)


def test_a_released_guardian_does_nothing_and_is_gone(tmp_path: Path) -> None:
    note, before = tmp_path / "saved", psutil.Process().children()
    guardian = watch(lambda: save(note))
    guardian.release()
    guardian.release()
    assert not note.exists()
    assert psutil.Process().children() == before


def test_a_guardian_holds_nothing_a_launcher_waits_for(tmp_path: Path) -> None:
    note = tmp_path / "held"

    def look() -> None:
        held = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) < 3]
        others = [name for name in os.listdir("/proc/self/fd") if int(name) > 3]  # 3 is the listing itself
        note.write_text(f"{held[1:]} {others} {os.getsid(0) == os.getpid()}")

    in_a_child(lambda: _keep(watch(look)))
    assert wait_until(lambda: note.exists() and bool(note.read_text()))
    assert note.read_text() == f"{['/dev/null'] * 2} [] True"


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_rank_that_stands_still_is_ended_unless_it_goes_on(
    goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian, "_LOOK_SECONDS", 0.02)
    note = tmp_path / "saved"

    def rank() -> None:
        watching = watch(lambda: save(note), stopped_seconds=0.3 if not goes_on else 30)
        if goes_on and os.fork() == 0:
            wait_until(lambda: psutil.Process(os.getppid()).status() == psutil.STATUS_STOPPED)
            time.sleep(0.2)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        watching.release()

    status = in_a_child(rank)
    assert os.waitstatus_to_exitcode(status) == (0 if goes_on else -signal.SIGKILL)
    assert goes_on or wait_until(note.exists)
    assert not goes_on or not note.exists()


def test_the_names_of_mapped_mpi_memory_go_and_nothing_else() -> None:
    ours, others = f"/dev/shm/mpich_shm_test_{os.getpid()}", f"/dev/shm/stranger_{os.getpid()}"
    maps = []
    try:
        for path in (ours, others):
            with open(path, "w+b") as file:
                file.write(bytes(4096))
                file.flush()
                maps.append(mmap.mmap(file.fileno(), 4096))
        remove_shared_memory()
        assert not os.path.exists(ours)
        assert os.path.exists(others)
        maps[0][0] = 1  # the memory itself stays
    finally:
        for memory in maps:
            memory.close()
        for path in (ours, others):
            if os.path.exists(path):
                os.unlink(path)


def _keep(guardian: object) -> None:
    """End the process with the guardian unreleased."""
    assert guardian
    os.kill(os.getpid(), signal.SIGKILL)
