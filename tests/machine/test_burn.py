"""CPU time used up on purpose: as much as is asked, by the thread's clock, whatever else the host does."""

from __future__ import annotations

import threading
import time

from dlemu.machine.clock import Burner, BurnerThreads


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
