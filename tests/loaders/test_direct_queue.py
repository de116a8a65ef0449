"""The queue between a rank and its workers, on both sides of a process."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections import deque
from typing import Any

import pytest

from dlemu.loaders._direct_queue import DirectQueue, NotInTime, direct_context


def _answer(asked: DirectQueue, answered: DirectQueue) -> None:
    while (item := asked.get()) is not None:
        answered.put(item)


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_items_cross_in_order(start_method: str) -> None:
    context: Any = direct_context(start_method)
    asked, answered = context.Queue(), context.Queue()
    worker = context.Process(target=_answer, args=(asked, answered))
    worker.start()
    for item in (1, ("train", 2, 3), b"x" * 1000, None):
        asked.put(item)
    assert [answered.get(60) for _ in range(3)] == [1, ("train", 2, 3), b"x" * 1000]
    worker.join(60)
    assert worker.exitcode == 0


def test_items_of_any_size_cross_whole_and_several_by_one_read() -> None:
    waiting = DirectQueue(multiprocessing.get_context("fork"))
    items = [b"a" * size for size in (0, 1, 3000, 300_000, 65_536, 7)]  # a pipe holds 64 KiB
    writer = threading.Thread(target=lambda: deque(map(waiting.put, items), maxlen=0))
    writer.start()
    assert [waiting.get(60) for _ in items] == items
    writer.join()
    for number in range(5):
        waiting.put(number)
    assert [waiting.get(0) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(queue.Empty):
        waiting.get(0)


def test_a_queue_whose_writers_are_gone_says_so() -> None:
    waiting = DirectQueue(multiprocessing.get_context("fork"))
    waiting.put("last")
    waiting._writer.close()
    assert waiting.get(60) == "last"
    with pytest.raises(EOFError):
        waiting.get(60)


def test_a_deadline_ends_the_wait_where_the_reader_would_go_on() -> None:
    waiting = DirectQueue(multiprocessing.get_context("fork"))
    waiting.until_ns = 0
    with pytest.raises(NotInTime):
        waiting.get(60)
    waiting.put("there")
    assert waiting.get(60) == "there"
    waiting.until_ns = time.monotonic_ns() + 60_000_000_000
    with pytest.raises(queue.Empty):
        waiting.get(0.01)


def test_many_writers_do_not_mix_their_items() -> None:
    context: Any = direct_context("fork")
    asked, answered = context.Queue(), context.Queue()
    workers = [context.Process(target=_put_many, args=(answered, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    items = [answered.get(60) for _ in range(400)]
    for worker in workers:
        worker.join(60)
    asked.close()
    for number in range(4):
        assert [index for who, index, _ in items if who == number] == list(range(100))
    assert all(data == bytes([who]) * 3000 for who, _, data in items)


def _put_many(answered: DirectQueue, number: int) -> None:
    for index in range(100):
        answered.put((number, index, bytes([number]) * 3000))
