"""The kernel's books of a thread: work, and bytes that came from storage."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from dlemu.machine.thread_accounting import ThreadAccounting, process_storage_bytes


def test_computing_counts_as_time_on_a_core_and_sleeping_does_not() -> None:
    books = ThreadAccounting()
    before = books.look()
    if not before.cpu_ns:
        pytest.skip("this kernel keeps no schedstat")
    time.sleep(0.05)
    slept = books.look()
    worked = time.thread_time_ns()
    while time.thread_time_ns() < worked + 50_000_000:
        pass
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


def test_each_thread_has_an_account_of_its_own() -> None:
    books = ThreadAccounting()
    books.look()
    if not books.look().cpu_ns:
        pytest.skip("this kernel keeps no schedstat")
    seen: list[int] = []

    def look() -> None:
        seen.append(books.look().cpu_ns)

    worked = time.thread_time_ns()
    while time.thread_time_ns() < worked + 50_000_000:
        pass
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen[0] < 40_000_000 < books.look().cpu_ns


def test_work_of_less_than_a_tick_between_two_sleeps_is_counted() -> None:
    books = ThreadAccounting()
    if not books.look().cpu_ns:
        pytest.skip("this kernel keeps no schedstat")
    counted, begun = 0, time.thread_time_ns()
    for _ in range(40):
        before, until = books.look(), time.monotonic_ns() + 300_000
        while time.monotonic_ns() < until:
            pass
        counted += books.look().cpu_ns - before.cpu_ns
        time.sleep(0.0005)
    assert counted > (time.thread_time_ns() - begun) / 2
