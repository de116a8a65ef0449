"""How batches get from the loader to the trainer: prefetched by a thread, as by PyTorch's pin-memory thread, or not."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import NamedTuple, Self

from datagen.errors import DlemuError
from dlemu.loaders.loader_base import Batch, TimedBatches
from dlemu.machine.clock import Clock
from dlemu.ranks.process_control import start_thread


class TakenBatch(NamedTuple):
    """A batch and the time (CLOCK_MONOTONIC) at which the loader had delivered it."""

    ready_ns: int
    batch: Batch


class BatchQueue:
    """The batches of an epoch, in order: the trainer itself takes each one off the loader, when it needs it."""

    def __init__(self, batches: Iterator[Batch], clock: Clock) -> None:
        self._batches, self._clock = batches, clock

    def take(self) -> TakenBatch:
        """Return the next batch; raises DlemuError when it can't be made or does not arrive within the timeout."""
        batch = next(self._batches)
        return TakenBatch(self._clock.now_ns(), batch)

    def read_ahead(self) -> None:
        """Tell that the trainer is going to do something else before it takes the next batch; may be repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


class PrefetchQueue(BatchQueue):
    """Prefetches one batch: batch k+1 is taken off the loader as soon as it is there, once the trainer has batch k.

    Handing a batch from thread to thread costs up to 50 us, so its thread only waits where the batch is not ready yet.
    """

    def __init__(self, batches: Iterator[Batch], clock: Clock, timeout_seconds: float, rank: int) -> None:
        super().__init__(batches, clock)
        self._timed = batches if isinstance(batches, TimedBatches) else None
        self._timeout_seconds, self._rank = timeout_seconds, rank
        self._held: TakenBatch | None = None
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a threading.Semaphore costs 10 us a batch
        self._ready: queue.SimpleQueue[TakenBatch | BaseException] = queue.SimpleQueue()
        self._requested = False
        """Whether the thread takes a batch, which is not yet received from it."""
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._timed is None:
            self.read_ahead()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._requests.put(False)
        if self._thread is not None and kind is None:
            self._thread.join()  # not after a failure: the thread may hang in the loader; a daemon ends with the rank

    def take(self) -> TakenBatch:
        taken: TakenBatch | BaseException | None
        taken, self._held = self._held, None
        if self._requested or self._timed is None:
            with contextlib.suppress(queue.Empty):
                taken = self._ready.get(timeout=self._timeout_seconds)
                self._requested = False
        elif taken is None and (batch := self._timed.take(self._timeout_seconds)) is not None:
            taken = TakenBatch(self._clock.now_ns(), batch)
        if taken is None:
            raise DlemuError(
                f"rank {self._rank} has waited {self._timeout_seconds:g} s for a batch (timeout_seconds); its "
                "workers are stuck in reads: check the storage (`dmesg`, mount state), or raise timeout_seconds"
            )
        if isinstance(taken, BaseException):
            raise taken
        if self._timed is None:
            self.read_ahead()
        return taken

    def read_ahead(self) -> None:
        """Take the next batch if it is ready, else have the thread wait for it."""
        if self._held is not None or self._requested:
            return
        if self._timed is not None:
            try:
                batch = self._timed.take(0)
            except StopIteration:
                return
            if batch is not None:
                self._held = TakenBatch(self._clock.now_ns(), batch)
                return
        if self._thread is None:
            self._thread = threading.Thread(target=self._pump, name="dlemu-prefetch", daemon=True)
            start_thread(self._thread)
        self._requested = True
        self._requests.put(True)

    def _pump(self) -> None:
        try:
            while self._requests.get():
                batch = next(self._batches)
                self._ready.put(TakenBatch(self._clock.now_ns(), batch))
        except StopIteration:
            return
        except BaseException as error:  # raised again in `take`
            self._ready.put(error)
