"""The kernel's books of a thread, work and bytes that came from storage; and CPU time that is used up on purpose."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlemu.machine.clock import Burner, BurnerThreads
from dlemu.machine.thread_accounting import ThreadAccounting, process_storage_bytes


@pytest.fixture
def books() -> ThreadAccounting:
    accounts = ThreadAccounting()
    if not accounts.look().cpu_ns:
        pytest.skip("this kernel keeps no schedstat")
    return accounts


def work(seconds: float) -> None:
    until_ns = time.thread_time_ns() + seconds * 1e9
    while time.thread_time_ns() < until_ns:
        pass


def test_computing_counts_as_time_on_a_core_and_sleeping_does_not(books: ThreadAccounting) -> None:
    before = books.look()
    time.sleep(0.05)
    slept = books.look()
    work(0.05)
    after = books.look()
    assert slept.cpu_ns - before.cpu_ns < 40_000_000
    assert after.cpu_ns - slept.cpu_ns > 40_000_000


def test_bytes_from_storage_are_told_from_those_of_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "file"
    size = 8 << 20
    file.write_bytes(os.urandom(size))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        books, whole = ThreadAccounting(), process_storage_bytes()
        before = books.look().storage_bytes
        os.pread(descriptor, size, 0)
        once = books.look().storage_bytes
        if once == before:
            pytest.skip(f"the file system of {tmp_path} keeps no books, or is memory")
        os.pread(descriptor, size, 0)
        assert once - before == pytest.approx(size, rel=0.1)
        # A page of the interpreter that is read anew, on a host short of memory, is in the books, too.
        assert books.look().storage_bytes - once < size / 4
        assert process_storage_bytes() - whole >= once - before
    finally:
        os.close(descriptor)


def test_each_thread_has_an_account_of_its_own(books: ThreadAccounting) -> None:
    work(0.05)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(books.look).result().cpu_ns < 40_000_000 < books.look().cpu_ns


def test_work_of_less_than_a_tick_between_two_sleeps_is_counted(books: ThreadAccounting) -> None:
    counted, begun = 0, time.thread_time_ns()
    for _ in range(40):
        before, until = books.look(), time.monotonic_ns() + 300_000
        while time.monotonic_ns() < until:
            pass
        counted += books.look().cpu_ns - before.cpu_ns
        time.sleep(0.0005)
    assert counted > (time.thread_time_ns() - begun) / 2


# Used up on purpose


def test_what_it_says_is_what_the_thread_used() -> None:
    burner, before = Burner(), time.thread_time_ns()
    assert burner.burn(0.0) == 0
    burned_ns = sum(burner.burn(0.002) for _ in range(20))
    assert 0.04e9 <= burned_ns <= time.thread_time_ns() - before


def test_several_threads_share_it() -> None:
    threads, before = BurnerThreads(3), time.process_time_ns()
    burned_ns = sum(threads.burn(0.03) for _ in range(6))
    assert 0.18e9 <= burned_ns <= time.process_time_ns() - before
    assert burned_ns < 2 * 0.18e9, "in shares, not by each"


def test_others_run_python_meanwhile() -> None:
    """A loader's other threads must not wait for the interpreter while one of them burns."""
    turns, burning = 0, threading.Thread(target=Burner().burn, args=(0.1,))
    burning.start()
    while burning.is_alive():
        turns += 1
        burning.join(0.0002)
    assert turns > 10
