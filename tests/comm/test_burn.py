"""CPU time used up on purpose: as much as is asked, by the thread's clock, whatever else the host does."""

from __future__ import annotations

import threading
import time

import pytest

from dlemu.comm.burn import Burner, BurnerThreads


@pytest.mark.parametrize("seconds", [0.0002, 0.003, 0.05])
def test_it_burns_what_it_is_asked_for(seconds: float) -> None:
    burner, calls = Burner(), max(3, round(0.15 / seconds))
    burner.burn(seconds)
    before = time.thread_time()
    told_ns = sum(burner.burn(seconds) for _ in range(calls))
    used = time.thread_time() - before
    assert used == pytest.approx(calls * seconds, rel=0.05)
    assert told_ns == pytest.approx(used * 1e9, rel=0.05)


def test_several_threads_share_it() -> None:
    """What a call computes too much, where another program slows its core down, the next one leaves out."""
    threads = BurnerThreads(3)
    before = time.process_time()
    assert sum(threads.burn(0.09) for _ in range(6)) == pytest.approx(0.54e9, rel=0.05)
    assert time.process_time() - before == pytest.approx(0.54, rel=0.2)


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
