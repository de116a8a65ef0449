"""A call that hangs in the kernel ends a run in time."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future, wait
from types import FrameType

import pytest

from datagen.errors import DatasetError, DlemuError
from dlemu.ranks import Interrupted, PatienceError, within


def test_what_is_done_in_time_is_returned_or_raised() -> None:
    assert within(60, lambda: 7, "counting") == 7

    def fail() -> None:
        raise DatasetError("no such file")

    with pytest.raises(DatasetError, match="no such file"):
        within(60, fail, "looking")


def test_what_hangs_is_named_and_left_behind() -> None:
    over, ended = threading.Event(), threading.Event()

    def hang() -> None:
        over.wait(60)
        ended.set()

    with pytest.raises(DlemuError, match=r"looking at /data took longer than 0\.05 s \(timeout_seconds\)"):
        within(0.05, hang, "looking at /data")
    assert not ended.is_set(), "it was not waited for"
    over.set()
    assert ended.wait(60), "and goes on in a thread"


@pytest.mark.parametrize(
    ("seconds", "number", "told"),
    [(0.3, signal.SIGTERM, PatienceError), (1000.0, signal.SIGTERM, Interrupted), (0.3, signal.SIGINT, Interrupted)],
)
def test_who_is_ended_after_half_of_the_wait_says_what_it_waited_for(
    seconds: float, number: int, told: type[BaseException]
) -> None:
    """The others' patience ended first: they would only say that this rank did not arrive."""
    never = threading.Event()

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(told) as caught:
            within(seconds, never.wait, "fsync of /mnt/a")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        never.set()
    assert ("fsync of /mnt/a took" in str(caught.value)) == (told is PatienceError)


def test_an_interruption_as_the_call_returns_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_and_interrupt(outcomes: list[Future[int]], _: float) -> None:
        wait(outcomes)
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("dlemu.ranks.process_control.wait", wait_and_interrupt)
    with pytest.raises(Interrupted):
        within(1e-9, lambda: 7, "counting")
