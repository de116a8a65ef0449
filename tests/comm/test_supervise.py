"""How a run comes to its end, without a process: what ranks come to and what time does to them are given."""

from __future__ import annotations

import math
import signal

import pytest

from dlemu.comm import Failure, RankEnd, first_failure
from dlemu.comm.supervise import Ending

SECOND_NS = 1_000_000_000
GRACE_SECONDS = 10.0


class Run:
    """Ranks as processes 100, 101, ...; `sent` are the signals that they got, by time in seconds."""

    def __init__(self, ranks: int, timeout_seconds: float = math.inf) -> None:
        self.ending = Ending(GRACE_SECONDS, timeout_seconds)
        self.sent: list[tuple[float, int, int]] = []
        self.now_ns = 1_000 * SECOND_NS
        for rank in range(ranks):
            self.ending.started(100 + rank, rank)

    def fail(self, rank: int, *, echo: bool = False, kind: str = "DatasetError", status: int = 2) -> None:
        failure = Failure(rank=rank, kind=kind, message="why", status=status, at_ns=self.now_ns, echo=echo)
        self.ending.reported(failure, self.now_ns)
        self.end(rank, status)

    def end(self, rank: int, code: int) -> None:
        self.ending.ended(100 + rank, code, self.now_ns)

    def wait(self, seconds: float) -> None:
        """Let time pass; every step is taken when it is due."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.ending.due_ns <= end_ns:
            self.now_ns = max(self.now_ns, math.ceil(self.ending.due_ns))
            self.ending.step(self.now_ns, self._send)
        self.now_ns = end_ns

    def _send(self, process: int, signal_number: int) -> bool:
        self.sent.append(((self.now_ns / SECOND_NS) % 1000, process - 100, signal_number))
        return True

    @property
    def ends(self) -> list[RankEnd]:
        assert not self.ending.running
        return self.ending.ends


def test_a_run_that_ends_well_sends_nothing() -> None:
    run = Run(3)
    run.wait(1e6)
    for rank in (2, 0, 1):
        run.end(rank, 0)
    run.wait(1e6)
    assert run.sent == []
    assert run.ends == [RankEnd(rank, 0, 0, None) for rank in range(3)]


def test_others_get_a_fifth_of_the_grace_to_notice_by_themselves() -> None:
    run = Run(3)
    run.fail(1)
    run.wait(1)
    run.fail(0, echo=True, kind="PeerLostError", status=3)
    run.wait(1.5)
    run.end(2, -signal.SIGTERM)
    run.wait(100)
    assert run.sent == [(2.0, 2, signal.SIGTERM)]
    cause = first_failure(run.ends)
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "DatasetError")
    assert [end.failure.echo for end in run.ends if end.failure] == [True, False, True]


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
    assert stuck is not None
    assert stuck.message == "rank 1 (process 101) did not stop within 10 s and was killed"
    assert unkillable is not None
    assert "does not end" in unkillable.message


def test_an_interruption_is_passed_on_at_once_and_a_second_one_ends_the_grace() -> None:
    run = Run(2)
    run.ending.interrupted(signal.SIGINT, run.now_ns)
    run.wait(1)
    run.ending.interrupted(signal.SIGINT, run.now_ns)
    run.wait(1)
    for rank in range(2):
        run.end(rank, -signal.SIGKILL)
    assert [sent[0] for sent in run.sent] == [0.0, 0.0, 1.0, 1.0]
    assert [(end.failure.kind, end.status) for end in run.ends if end.failure] == [("Interrupted", 130)] * 2


def test_a_failure_before_the_interruption_is_the_cause() -> None:
    run = Run(2)
    run.fail(0)
    run.wait(0.5)
    run.ending.interrupted(signal.SIGTERM, run.now_ns)
    run.wait(0.5)
    run.end(1, -signal.SIGTERM)
    cause = first_failure(run.ends)
    assert cause is not None
    assert cause.kind == "DatasetError"


def test_a_rank_that_stands_still_has_failed_unless_it_goes_on_in_time() -> None:
    run = Run(2, timeout_seconds=60)
    run.ending.stopped(101, run.now_ns)
    run.wait(59)
    run.ending.continued(101)
    run.wait(1000)
    assert run.sent == [], "Ctrl-Z and fg"
    run.ending.stopped(101, run.now_ns)
    run.wait(30)
    run.ending.stopped(101, run.now_ns)
    run.wait(60)
    for rank in range(2):
        run.end(rank, -signal.SIGKILL)
    cause = first_failure(run.ends)
    assert cause is not None
    assert (cause.rank, cause.kind, cause.status) == (1, "Stopped", 3)
    assert "rank 1 (process 101) was stopped from outside" in cause.message
    assert [moment for moment, *_ in run.sent] == pytest.approx([121.0, 121.0, 129.0, 129.0])
