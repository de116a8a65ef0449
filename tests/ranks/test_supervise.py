"""How a run comes to its end, without a process: what ranks come to and what time does to them are given."""

from __future__ import annotations

import errno
import math
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import DlemuError, UserError
from dlemu.ranks import Failure, Interrupted, PeerLostError, first_failure
from dlemu.ranks.failure import Ending, RankEnd, describe
from tests.runs import present

SECOND_NS = 1_000_000_000
GRACE_SECONDS = 10.0


class Run:
    """Ranks as processes 100, 101, ...; `sent` are the signals that they got, by time in seconds."""

    def __init__(self, ranks: int, timeout_seconds: float = math.inf, most_seconds: float = math.inf) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.ending = Ending(
            grace_seconds=GRACE_SECONDS,
            timeout_seconds=timeout_seconds,
            most_seconds=most_seconds,
            begin_ns=self.now_ns,
        )
        self.there = True
        self.sent: list[tuple[float, int, int]] = []
        for rank in range(ranks):
            self.ending.running[100 + rank] = rank

    def fail(self, rank: int, *, echo: bool = False, kind: str = "DatasetError", status: int = 2) -> None:
        failure = Failure(rank=rank, kind=kind, message="why", status=status, at_ns=self.now_ns, echo=echo)
        self.ending.record_failure(failure, self.now_ns)
        self.end(rank, status)

    def end(self, rank: int, code: int) -> None:
        self.ending.record_end(100 + rank, code, self.now_ns)

    def wait(self, seconds: float) -> None:
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.ending.due_ns <= end_ns:
            self.now_ns = max(self.now_ns, math.ceil(self.ending.due_ns))
            self.ending.step(self.now_ns, self._send)
        self.now_ns = end_ns

    def _send(self, process: int, signal_number: int) -> bool:
        self.sent.append(((self.now_ns / SECOND_NS) % 1000, process - 100, signal_number))
        return self.there

    @property
    def ends(self) -> list[RankEnd]:
        assert not self.ending.running
        return [self.ending.ends[rank] for rank in sorted(self.ending.ends)]


def test_a_run_that_ends_well_sends_nothing() -> None:
    run = Run(3)
    run.wait(1e6)
    for rank in (2, 0, 1):
        run.end(rank, 0)
    run.wait(1e6)
    assert run.sent == []
    assert run.ends == [RankEnd(rank, 0, None) for rank in range(3)]


def test_who_outlives_the_grace_is_killed_and_who_outlives_that_is_given_up() -> None:
    run = Run(3)
    run.fail(0)
    run.wait(11)
    run.end(1, -signal.SIGKILL)
    run.wait(10)
    assert run.sent == [
        (2.0, 1, signal.SIGTERM),
        (2.0, 2, signal.SIGTERM),
        (10.0, 1, signal.SIGKILL),
        (10.0, 2, signal.SIGKILL),
    ]
    stuck, unkillable = (end.failure for end in run.ends[1:])
    assert present(stuck).message == "rank 1 (process 101) did not stop within 10 s and was killed"
    assert "does not end" in present(unkillable).message


def test_a_rank_that_stands_still_has_failed_unless_it_goes_on_in_time() -> None:
    run = Run(2, timeout_seconds=60)
    run.ending.record_stop(101, run.now_ns)
    run.wait(59)
    run.ending.record_continuation(101)
    run.wait(1000)
    assert run.sent == [], "Ctrl-Z and fg"
    run.ending.record_stop(101, run.now_ns)
    run.wait(30)
    run.ending.record_stop(101, run.now_ns)
    run.wait(42)
    for rank in range(2):
        run.end(rank, -signal.SIGKILL)
    cause = present(first_failure(run.ends))
    assert (cause.rank, cause.kind, cause.status) == (1, "Stopped", 3)
    assert "rank 1 (process 101) was stopped from outside" in cause.message
    assert [moment for moment, *_ in run.sent] == pytest.approx([121.0, 121.0, 129.0, 129.0])


def why(run: Run, rank: int) -> tuple[str, bool, int]:
    end = run.ending.ends[rank]
    assert end.failure is not None
    assert end.failure.rank == rank
    assert end.status == end.failure.status
    assert 1_000 * SECOND_NS <= end.failure.at_ns <= run.now_ns
    if "process" in end.failure.message:
        assert f"rank {rank} (process {100 + rank})" in end.failure.message
    return end.failure.kind, end.failure.echo, end.status


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, None),
        (-signal.SIGTERM, ("Interrupted", True, 143)),
        (1, ("Exit", False, 1)),
        (-signal.SIGSEGV, ("Signal", False, 139)),
    ],
)
def test_what_ranks_come_to_that_were_asked_to_end(code: int, expected: tuple[str, bool, int] | None) -> None:
    run = Run(2)
    run.fail(0)
    run.wait(3)
    assert run.sent == [(2.0, 1, signal.SIGTERM)]
    run.end(1, code)
    if expected is None:
        assert run.ends[1] == RankEnd(1, 0, None)
    else:
        assert why(run, 1) == expected
    cause = present(first_failure(run.ends))
    assert (cause.rank, cause.kind) == (0, "DatasetError")


@pytest.mark.parametrize(
    ("own", "code", "expected"),
    [
        (None, 0, ("Interrupted", False, 130)),
        (None, -signal.SIGTERM, ("Interrupted", False, 130)),
        (None, 7, ("Exit", False, 7)),
        (None, -signal.SIGSEGV, ("Signal", False, 139)),
        (("Interrupted", False), 143, ("Interrupted", False, 130)),
        (("PeerLostError", True), 3, ("Interrupted", False, 130)),
        (("DatasetError", False), 2, ("DatasetError", False, 2)),
    ],
)
def test_an_interruption_is_the_cause_of_what_follows_from_it_and_of_nothing_else(
    own: tuple[str, bool] | None, code: int, expected: tuple[str, bool, int]
) -> None:
    run = Run(1)
    run.ending.record_interruption(signal.SIGINT, run.now_ns)
    if own is None:
        run.end(0, code)
    else:
        run.fail(0, kind=own[0], echo=own[1], status=code)
    assert why(run, 0) == expected


def test_an_interruption_after_a_failure_asks_at_once_and_is_no_cause() -> None:
    run = Run(2)
    run.fail(0)
    run.wait(0.5)
    run.ending.record_interruption(signal.SIGINT, run.now_ns)
    run.wait(0.5)
    assert run.sent == [(0.5, 1, signal.SIGTERM)]
    run.end(1, -signal.SIGTERM)
    assert why(run, 1) == ("Interrupted", True, 130)
    late = Run(2)
    late.fail(0)
    late.wait(3)
    late.ending.record_interruption(signal.SIGINT, late.now_ns)
    late.wait(1)
    late.ending.record_interruption(signal.SIGINT, late.now_ns)
    late.wait(0)
    assert [(moment, number) for moment, _, number in late.sent] == [
        (2.0, signal.SIGTERM),
        (3.0, signal.SIGTERM),
        (4.0, signal.SIGKILL),
    ]


def test_ranks_that_still_run_after_their_time_have_failed_whatever_they_say_of_their_end() -> None:
    run = Run(3, most_seconds=60.0)
    run.wait(10)
    run.end(2, 0)
    run.wait(49)
    assert run.sent == []
    run.wait(1 + GRACE_SECONDS / 5)
    assert run.sent == [(62.0, 0, signal.SIGTERM), (62.0, 1, signal.SIGTERM)]
    run.fail(0, kind="Interrupted", status=143)
    run.end(1, -signal.SIGTERM)
    late, also, whole = (end.failure for end in run.ends)
    assert [present(late).kind, present(also).kind, whole] == ["Late", "Late", None]
    assert (
        present(late).message
        == "rank 0 (process 100) did not end within 60 s: check the storage (`dmesg`, mount state), and what else runs "
        "on this host (`top`)"
    )
    assert first_failure(run.ends) == late


# What is told of failures.


FAILURES = st.builds(
    Failure,
    rank=st.integers(0, 100),
    kind=st.text(),
    message=st.text(),
    status=st.integers(1, 255),
    at_ns=st.integers(0, 2**62),
    echo=st.booleans(),
    traceback=st.text(),
)


@given(st.lists(st.none() | FAILURES))
def test_the_cause_is_the_earliest_that_is_no_echo(failures: list[Failure | None]) -> None:
    cause = first_failure(RankEnd(rank=0, status=0, failure=failure) for failure in failures)
    found = [failure for failure in failures if failure is not None]
    own = [failure for failure in found if not failure.echo]
    assert (cause is None) == (not found)
    if cause is not None:
        assert cause.at_ns == min(failure.at_ns for failure in own or found)
        assert cause.echo == (not own)


def test_an_exception_is_described_by_what_is_known_of_it() -> None:
    assert describe(2, UserError("no such file")).message == "no such file"
    assert describe(2, MemoryError()).message.startswith("rank 2: no memory is left")
    broken = describe(2, OSError(errno.EIO, os.strerror(errno.EIO), "/mnt/kv"))
    assert (broken.status, broken.traceback) == (UserError.exit_status, "")
    assert broken.message.startswith("rank 2: /mnt/kv: Input/output error: the storage failed")
    assert describe(2, OSError(errno.EBADF, os.strerror(errno.EBADF))).status == DlemuError.exit_status
    assert describe(2, Interrupted(signal.SIGTERM)).message == "rank 2 was interrupted by SIGTERM"
    assert describe(2, SystemExit(7)).message == "rank 2 ended with exit status 7"
    odd = describe(2, ValueError("odd"))
    assert odd.message == "rank 2: ValueError: odd"
    assert odd.traceback.endswith("ValueError: odd\n")
    errors: list[BaseException] = [
        UserError(""),
        MemoryError(),
        Interrupted(signal.SIGTERM),
        SystemExit(7),
        ValueError(),
        PeerLostError(""),
    ]
    assert [describe(0, error).status for error in errors] == [2, 2, 143, 7, 3, 3]
    assert [describe(0, error).echo for error in errors] == [False] * 5 + [True]
