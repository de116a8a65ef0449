"""CPU time used up on purpose: as much as is asked, by the thread's clock, whatever else the host does."""

from __future__ import annotations

import hashlib
import threading
import time
from itertools import cycle

import pytest

from dlemu.comm.burn import Burner, BurnerThreads


class UnsteadyCore:
    """A thread's CPU clock on a core whose speed jumps from hash to hash."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns, self._round_ns = 0, cycle((300, 900, 450))
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.ns)
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", self._hash)

    def _hash(self, _name: str, _password: bytes, _salt: bytes, rounds: int) -> None:
        self.ns += rounds * next(self._round_ns)


@pytest.mark.parametrize("seconds", [0.0002, 0.003, 0.05])
def test_it_burns_what_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What one call computes too much, as its core slowed down, the next one leaves out: nothing adds up."""
    core, burner, calls = UnsteadyCore(monkeypatch), Burner(), 200
    burned_ns = sum(burner.burn(seconds) for _ in range(calls))
    assert burned_ns == core.ns
    too_much_ns = burned_ns - calls * seconds * 1e9
    assert 0 <= too_much_ns < 3 * min(seconds, 0.02) * 1e9, (
        "at most what a last hash took three times as long as before"
    )


def test_what_it_says_is_what_the_thread_used() -> None:
    burner, before = Burner(), time.thread_time_ns()
    burned_ns = sum(burner.burn(0.002) for _ in range(20))
    assert 0.04e9 <= burned_ns <= time.thread_time_ns() - before


def test_several_threads_share_it() -> None:
    threads, before = BurnerThreads(3), time.process_time_ns()
    burned_ns = sum(threads.burn(0.03) for _ in range(6))
    assert 0.18e9 <= burned_ns <= time.process_time_ns() - before
    assert burned_ns < 2 * 0.18e9, "in shares, not by each"


def test_others_run_python_meanwhile() -> None:
    """A loader's other threads must not wait for the interpreter while one of them burns."""
    ended, turns = threading.Event(), 0

    def burn() -> None:
        Burner().burn(0.1)
        ended.set()

    thread = threading.Thread(target=burn)
    thread.start()
    while not ended.is_set():
        turns += 1
        ended.wait(0.0002)
    thread.join()
    assert turns > 10


def test_nothing_is_nothing() -> None:
    assert Burner().burn(0.0) == 0
