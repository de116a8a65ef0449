from __future__ import annotations

import contextlib
import signal
import sys
import time
from types import FrameType

import pytest

from dlemu.ranks import Interrupted
from dlemu.ranks.process_control import interrupt_on, interrupt_once


def test_an_interruption_is_raised_once() -> None:
    handler = interrupt_once()
    with pytest.raises(Interrupted):
        handler(signal.SIGTERM, None)
    handler(signal.SIGTERM, None)


@pytest.mark.parametrize("ignored", [False, True], ids=["closed", "nohup"])
def test_a_closed_terminal_interrupts_unless_nohup_has_it_ignored(ignored: bool) -> None:
    numbers = signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL) for number in numbers]
    try:
        interrupt_on(signal.SIGTERM)
        with contextlib.nullcontext() if ignored else pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_the_end_of_a_child_that_comes_with_an_interruption_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def watch(number: int, frame: FrameType | None) -> None:
        raise RuntimeError("a worker died")

    both = signal.SIGTERM, signal.SIGCHLD
    before = [signal.signal(number, handler) for number, handler in zip(both, (interrupt_once(), watch), strict=True)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, both)
    try:
        for number in both:
            signal.raise_signal(number)  # to this thread: any other one of the process would take it at once
        with pytest.raises(Interrupted):
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
    assert told == []


class Ended:
    """Interrupted as it goes away, where nothing that is raised arrives."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_an_interruption_that_is_lost_comes_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    before = signal.signal(signal.SIGTERM, interrupt_once())
    try:
        Ended()
        with pytest.raises(Interrupted):
            time.sleep(60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == []
