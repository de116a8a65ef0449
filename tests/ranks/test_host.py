"""How the launcher's processes of a host meet, and what ends the one that waits."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DlemuError
from dlemu.ranks import Comm, PeerLostError, run_ranks
from dlemu.ranks import host as host_module
from dlemu.ranks.host import Host, _join_host
from tests.e2e.harness import until
from tests.ranks.many_ranks import PATIENCE_SECONDS
from tests.ranks.test_leaders import ThreadLeaders, Wire


class Alone(ThreadLeaders):
    """A process of a launcher that says nothing of itself."""

    ends_all = False

    def __init__(self, rank: int, size: int, socket_name: str, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(Wire(1), 0, timeout_seconds)
        self.rank, self.size, self.members, self.socket_name = rank, size, range(size), socket_name


def started(
    size: int, lead: Callable[[Host], object], before: Callable[[int], object] = lambda rank: None
) -> list[int]:
    """Return how the processes of a host ended, of which the first runs `lead`."""
    socket_name, processes = secrets.token_hex(8), []
    for rank in range(size):
        process = os.fork()
        if process == 0:
            status = 99
            try:
                before(rank)
                joined = _join_host(Alone(rank, size, socket_name))
                if isinstance(joined, int):
                    status = joined
                else:
                    lead(joined)
                    status = 0
            finally:
                os._exit(status)
        processes.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def test_the_leader_runs_all_ranks_with_the_cpus_and_environment_of_their_processes(tmp_path: Path) -> None:
    def before(rank: int) -> None:
        os.environ["MINE"] = str(rank)

    def main(comm: Comm) -> int:
        found = comm.gather((os.environ["MINE"], os.getppid()))
        if found is not None:
            (tmp_path / "found").write_text(repr(found))
        return 0

    def lead(host: Host) -> None:
        (tmp_path / "leader").write_text(repr([(str(rank), os.getpid()) for rank in range(3)]))
        assert not any(end.failure for end in run_ranks(host.ranks, main, timeout_seconds=PATIENCE_SECONDS))
        host.close()

    assert started(3, lead, before) == [0, 0, 0]
    assert (tmp_path / "found").read_text() == (tmp_path / "leader").read_text()


def test_each_process_ends_as_its_rank_did() -> None:
    def lead(host: Host) -> None:
        host.statuses = {2: 137}
        host.end(3)

    assert started(3, lead) == [0, 3, 137]


def test_a_process_that_is_stopped_and_one_that_gets_signals_stop_no_rank() -> None:
    def lead(host: Host) -> None:
        time.sleep(0.3)  # until they wait
        os.kill(host._placeholders[0][0].process, signal.SIGSTOP)
        os.kill(host._placeholders[1][0].process, signal.SIGTERM)
        host.close()

    assert started(3, lead) == [0, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_leader_that_is_killed_or_stopped_ends_those_who_wait(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(host_module, "_CHECK_SECONDS", 0.02)

    def lead(host: Host) -> None:
        host.set_timeout(0.1)
        os.kill(os.getpid(), number)

    assert started(2, lead) == [-signal.SIGKILL, 3]
    assert "the process of rank 0 ended without a message" in capfd.readouterr().err


def test_processes_that_are_not_alike_lead_themselves(capfd: Any) -> None:
    def before(rank: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500 + rank, 1000))

    def lead(host: Host) -> None:
        assert len(host.ranks.members) == 1

    assert started(3, lead, before) == [0, 0, 0]
    note, _, reason = capfd.readouterr().err.partition(" differ ")
    assert note.startswith("note: the processes of ranks 0 to 2 on"), "a line with `dlemu: ` is the cause of a failure"
    assert reason.endswith("each imports the framework and runs its rank alone\n")


def test_a_door_that_others_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    socket_name = secrets.token_hex(8)
    late, early = Alone(1, 2, socket_name, 0.1), Alone(0, 3, secrets.token_hex(8), 0.1)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0dlemu-{socket_name}")
        other.listen()
        with pytest.raises(DlemuError, match=rf"can't meet at @dlemu-{socket_name} \(Address already in use\)"):
            _join_host(Alone(0, 2, socket_name))
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # so that the other end is somebody else's
        with pytest.raises(PeerLostError, match=r"the process of rank 0 did not arrive within 0.1 s"):
            _join_host(late)
    with pytest.raises(PeerLostError, match="2 of the processes of ranks 0 to 2 did not arrive"):
        _join_host(early)


def test_a_stranger_at_the_door_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Alone(0, 2, secrets.token_hex(8), 1.0)
    with socket.socket(socket.AF_UNIX) as stranger, ThreadPoolExecutor() as pool:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        met = pool.submit(_join_host, launcher)
        until(lambda: stranger.connect_ex(f"\0dlemu-{launcher.socket_name}") == 0, "the socket")
        with pytest.raises(PeerLostError, match="1 of the processes of ranks 0, 1 did not arrive"):
            met.result()
        assert stranger.recv(1) == b""
