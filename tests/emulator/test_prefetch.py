"""How batches get from a loader to the trainer, with loaders that are told when a batch is ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from datagen.errors import DatasetError, DlemuError
from dlemu.jobs.training.loop import PrefetchQueue
from dlemu.loaders.loader_base import Batch, TimedBatches
from dlemu.machine.clock import MonotonicClock
from tests.emulator.fakes import trace

STEPS = 5


class Released:
    """Batches of which `release` makes the next one ready; `takers` are the threads that took one."""

    def __init__(self) -> None:
        self._ready = threading.Semaphore(0)
        self.delivered = 0
        self.takers: list[threading.Thread] = []

    def release(self, batches: int = 1) -> None:
        self._ready.release(batches)

    def deliver(self, timeout_seconds: float | None) -> Batch | None:
        if self.delivered == STEPS:
            raise StopIteration
        if not self._ready.acquire(timeout=timeout_seconds):
            return None
        self.delivered += 1
        self.takers.append(threading.current_thread())
        return Batch(self.delivered, trace())


class Timed(Released, TimedBatches):
    def take(self, timeout_seconds: float | None = None) -> Batch | None:
        return self.deliver(timeout_seconds)


class Plain(Released, Iterator[Batch]):
    def __next__(self) -> Batch:
        batch = self.deliver(None)
        assert batch is not None
        return batch


def prefetching(batches: Iterator[Batch], timeout_seconds: float = 60.0) -> PrefetchQueue:
    return PrefetchQueue(batches, MonotonicClock(), timeout_seconds, rank=3)


def take_one(prefetched: PrefetchQueue, asks_ahead: bool) -> None:
    with prefetched:
        if asks_ahead:
            prefetched.read_ahead()
        prefetched.take()


@pytest.mark.parametrize("kind", [Timed, Plain])
def test_all_batches_come_in_order_whether_they_are_ready_or_not(kind: type[Timed] | type[Plain]) -> None:
    batches = kind()
    with prefetching(batches) as prefetched:
        for step in range(1, STEPS + 1):
            late = threading.Timer(0.02, batches.release)
            late.start() if step % 2 else batches.release()
            taken = prefetched.take()
            assert taken.batch.data == step
            assert taken.ready_ns <= MonotonicClock().now_ns()
            prefetched.read_ahead()
    assert batches.delivered == STEPS


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_batch_that_is_ready_is_taken_ahead_without_a_thread_or_not_before_it_is_needed(ahead: int) -> None:
    batches = Timed()
    batches.release(STEPS)
    with prefetching(batches) as prefetched:
        for step in range(1, STEPS + 1):
            prefetched.take()
            for _ in range(2 * ahead):
                prefetched.read_ahead()
            assert batches.delivered == min(step + ahead, STEPS), "one batch is taken ahead, and no more"
    assert set(batches.takers) == {threading.current_thread()}


def test_a_thread_waits_for_a_batch_that_is_not_ready_and_notes_when_it_came() -> None:
    batches, clock = Timed(), MonotonicClock()
    batches.release()
    with prefetching(batches) as prefetched:
        prefetched.take()
        prefetched.read_ahead()
        batches.release()
        while len(batches.takers) < 2:
            clock.sleep_until(clock.now_ns() + 1_000_000)
        taken_ns = clock.now_ns()
        clock.sleep_until(taken_ns + 50_000_000)
        taken = prefetched.take()
        assert taken.ready_ns < taken_ns + 50_000_000
        batches.release(STEPS)
    assert batches.takers[1] is not threading.current_thread()


@pytest.mark.parametrize("kind", [Timed, Plain])
@pytest.mark.parametrize("asks_ahead", [False, True])
def test_a_batch_that_never_comes_ends_the_wait(kind: type[Timed] | type[Plain], asks_ahead: bool) -> None:
    with pytest.raises(DlemuError, match=r"rank 3 has waited 0\.05 s for a batch"):
        take_one(prefetching(kind(), timeout_seconds=0.05), asks_ahead)


@pytest.mark.parametrize("kind", [Timed, Plain])
@pytest.mark.parametrize("asks_ahead", [False, True])
def test_an_error_reaches_the_trainer(
    kind: type[Timed] | type[Plain], asks_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Released, timeout_seconds: float | None) -> Batch | None:
        if timeout_seconds == 0:
            return None
        raise DatasetError("file 7 is damaged")

    monkeypatch.setattr(Released, "deliver", fail)
    with pytest.raises(DatasetError, match="file 7"):
        take_one(prefetching(kind()), asks_ahead)
