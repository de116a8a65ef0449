"""Ranks as processes: how a run begins, and above all how it ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from datagen.errors import DatasetError
from dlemu.ranks import Comm, Failure, Interrupted, PeerLostError, first_failure, run_ranks
from tests.ranks.many_ranks import PATIENCE_SECONDS, lives
from tests.runs import present

LONG_SECONDS = 600.0


def run(ranks: int, main: Callable[[Comm], int], grace_seconds: float = 2.0) -> list[Failure | None]:
    return [end.failure for end in run_ranks(ranks, main, timeout_seconds=LONG_SECONDS, grace_seconds=grace_seconds)]


@pytest.mark.parametrize("ranks", [1, 2, 18])
def test_ranks_meet_end_and_return_what_may_be_large(ranks: int) -> None:
    def main(comm: Comm) -> tuple[int, list[tuple[int, int, int]] | None, bytes]:
        highest = comm.all_reduce_max(comm.rank)
        return highest, comm.gather((comm.rank, comm.local_rank, os.getpid())), bytes(1 << 20)

    ends = run_ranks(ranks, main, timeout_seconds=LONG_SECONDS)
    assert [(end.rank, end.status, end.failure) for end in ends] == [(n, 0, None) for n in range(ranks)]
    assert first_failure(ends) is None
    assert all(end.result == (ranks - 1, end.result[1], bytes(1 << 20)) for end in ends)
    assert [part[:2] for part in ends[0].result[1]] == [(rank, rank) for rank in range(ranks)]
    assert len({os.getpid(), *(process for *_, process in ends[0].result[1])}) == ranks + 1


def test_a_rank_that_is_stopped_while_nobody_waits_for_it_is_named() -> None:
    def main(comm: Comm) -> int:
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return 0

    cause = present(first_failure(run_ranks(2, main, timeout_seconds=2, grace_seconds=0.5)))
    assert (cause.rank, cause.kind) == (0, "Stopped")
    assert "did not continue within 2 s" in cause.message


@pytest.mark.parametrize(
    ("ranks", "lost", "kind", "status"), [(5, 3, "DatasetError", 2), (18, 9, "Signal", 137)], ids=["error", "killed"]
)
def test_the_rank_that_fails_is_the_cause_and_the_others_are_echoes(
    ranks: int, lost: int, kind: str, status: int
) -> None:
    def main(comm: Comm) -> int:
        comm.all_reduce_max(0)
        if comm.rank == lost:
            if kind == "Signal":
                os.kill(os.getpid(), signal.SIGKILL)
            raise DatasetError("sample 7 of x.npz is cut off at byte 100: generate it again")
        comm.all_reduce_max(1)
        return 0

    ends = run_ranks(ranks, main, timeout_seconds=LONG_SECONDS)
    cause = present(first_failure(ends))
    assert (cause.rank, cause.kind, cause.status, cause.traceback) == (lost, kind, status, "")
    assert cause.message == "sample 7 of x.npz is cut off at byte 100: generate it again" or kind == "Signal"
    assert [end.status for end in ends] == [status if rank == lost else 3 for rank in range(ranks)]
    echoes = [end.failure for end in ends if end.rank != lost and end.failure]
    assert {(echo.kind, echo.echo) for echo in echoes} == {(PeerLostError.__name__, True)}


def test_a_killed_rank_whose_worker_lives_is_seen_at_once() -> None:
    """Nobody but the rank holds its sockets."""

    def main(comm: Comm) -> int:
        comm.all_reduce_max(0)
        if comm.rank == 1:
            if os.fork() == 0:
                time.sleep(LONG_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        killed_seconds = time.monotonic()
        with pytest.raises(PeerLostError, match=r"rank [01] ended without a message"):
            comm.all_reduce_max(1)
        assert time.monotonic() - killed_seconds < 1
        return 0

    assert [end.status for end in run_ranks(4, main, timeout_seconds=LONG_SECONDS)] == [0, 137, 0, 0]


def test_256_ranks_start_with_few_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        assert run(256, lambda comm: comm.all_reduce_max(comm.rank) - 255) == [None] * 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_status_is_an_end_too() -> None:
    def main(comm: Comm) -> int:
        if comm.rank < 2:
            sys.exit(7 * comm.rank)
        os._exit(5)

    failures = run(3, main)
    assert failures[0] is None
    assert [(failure.kind, failure.status) for failure in failures[1:] if failure] == [("SystemExit", 7), ("Exit", 5)]


def test_ranks_that_are_busy_get_to_put_their_affairs_in_order(tmp_path: Path) -> None:
    def main(comm: Comm) -> int:
        if comm.rank == 1:
            raise DatasetError("no")
        try:
            time.sleep(PATIENCE_SECONDS)
        except Interrupted:
            (tmp_path / str(comm.rank)).write_text("in order")
            raise
        return 0

    failures = run(3, main)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
    assert [(failure.kind, failure.echo) for failure in failures if failure] == [
        ("Interrupted", True),
        ("DatasetError", False),
        ("Interrupted", True),
    ]


def test_a_rank_that_stays_away_is_named_and_killed() -> None:
    def main(comm: Comm) -> int:
        comm.all_reduce_max(0)
        if comm.rank == 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(LONG_SECONDS)
        comm.all_reduce_max(1)
        return 0

    ends = run_ranks(3, main, timeout_seconds=1.0, grace_seconds=0.3)
    cause = present(first_failure(ends))
    assert cause.message == "rank 2 did not arrive at the barrier within 1 s"
    assert ends[2].status == 137


@pytest.mark.parametrize("heeds_sigterm", [True, False])
def test_no_descendant_survives_its_rank(heeds_sigterm: bool, tmp_path: Path) -> None:
    def main(comm: Comm) -> int:
        _start_family(tmp_path, comm.rank, heeds_sigterm)
        comm.all_reduce_max(0)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce_max(1)
        return 0

    before = psutil.Process().children()
    run(2, main, grace_seconds=0.5)
    family = [int(path.name) for path in tmp_path.iterdir()]
    assert len(family) == 4
    assert not any(lives(process) for process in family)
    assert psutil.Process().children() == before, "no zombies either"


def _start_family(folder: Path, rank: int, heeds_sigterm: bool) -> None:
    """Fork a child that forks a grandchild; both note their process ids and sleep. Returns once they have."""
    if os.fork() == 0:
        if not heeds_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
        (folder / str(os.getpid())).touch()
        time.sleep(LONG_SECONDS)
        os._exit(0)
    while len(list(folder.iterdir())) < 2 * (rank + 1) and len(list(folder.iterdir())) < 4:
        time.sleep(0.01)


def test_a_child_that_was_there_before_is_left_alone() -> None:
    bystander = os.fork()
    if bystander == 0:
        time.sleep(LONG_SECONDS)
        os._exit(0)
    assert run(2, lambda comm: 0) == [None, None]
    assert lives(bystander)
    os.kill(bystander, signal.SIGKILL)
    os.waitpid(bystander, 0)


def test_everything_is_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    handlers = list(map(signal.getsignal, numbers))
    files = len(os.listdir("/proc/self/fd"))
    memory = set(os.listdir("/dev/shm"))
    run(3, lambda comm: comm.all_reduce_max(0))
    assert handlers == list(map(signal.getsignal, numbers))
    assert len(os.listdir("/proc/self/fd")) == files
    assert {name for name in set(os.listdir("/dev/shm")) - memory if "dlemu" in name} == set()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_to_stop_ends_the_grace_of_ranks_that_heed_nothing(number: int) -> None:
    def stop() -> None:
        if time.monotonic() > begun + 1.0:  # they ignore it by now
            os.kill(os.getpid(), number)

    def main(comm: Comm) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(LONG_SECONDS)
        return 0

    begun, before = time.monotonic(), signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever a `nohup` handed down
    try:
        ends = run_ranks(2, main, timeout_seconds=LONG_SECONDS, grace_seconds=LONG_SECONDS, on_tick=stop)
    finally:
        signal.signal(signal.SIGHUP, before)
    cause = present(first_failure(ends))
    assert (cause.kind, [end.status for end in ends]) == ("Interrupted", [128 + number] * 2)
    assert cause.message.endswith(
        f"({signal.Signals(number).name})" if number == signal.SIGINT else signal.Signals(number).name
    )


@pytest.mark.slow
def test_waiting_costs_no_cpu(tmp_path: Path) -> None:
    def main(comm: Comm) -> int:
        comm.all_reduce_max(0)
        before_seconds = time.process_time()
        if comm.rank == 0:
            time.sleep(1.0)
        comm.all_reduce_max(1)
        spent = comm.gather(time.process_time() - before_seconds)
        if spent is not None:
            (tmp_path / "spent").write_text(json.dumps(spent))
        return 0

    assert run(18, main) == [None] * 18
    assert sum(json.loads((tmp_path / "spent").read_text())) < 0.2, "18 ranks, one second: under a fifth of one core"
