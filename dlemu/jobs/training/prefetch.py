"""How batches get from the loader to the trainer: prefetched by a thread, as by PyTorch's pin-memory thread, or not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from datagen.errors import DlemuError
from dlemu.comm.clock import Clock
from dlemu.comm.process_control import start_thread
from dlemu.loaders.loader_base import Batch


class TakenBatch(NamedTuple):
    """A batch and the time (CLOCK_MONOTONIC) at which the loader had delivered it."""

    ready_ns: int
    batch: Batch


class BatchQueue(Protocol):
    """The batches of an epoch, in order. A context manager: leaving it ends the queue."""

    def take(self) -> TakenBatch:
        """Return the next batch; raises DlemuError when it can't be made or does not arrive within the timeout."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OnDemandQueue:
    """No prefetch: the trainer takes each batch off the loader itself, when it needs it."""

    def __init__(self, batches: Iterator[Batch], clock: Clock) -> None:
        self._batches, self._clock = batches, clock

    def take(self) -> TakenBatch:
        """Return the next batch."""
        batch = next(self._batches)
        return TakenBatch(self._clock.now_ns(), batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class PrefetchQueue:
    """Prefetches one batch: a thread takes batch k+1 off the loader as soon as the trainer has taken batch k."""

    def __init__(self, batches: Iterator[Batch], clock: Clock, timeout_seconds: float, rank: int) -> None:
        self._batches, self._clock = batches, clock
        self._timeout_seconds, self._rank = timeout_seconds, rank
        self._ready: queue.SimpleQueue[TakenBatch | BaseException] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[None] = queue.SimpleQueue()  # a threading.Semaphore costs 10 us a batch
        self._stopped = False
        self._thread = threading.Thread(target=self._pump, name="dlemu-prefetch", daemon=True)

    def __enter__(self) -> Self:
        start_thread(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._taken.put(None)
        if error is None:
            self._thread.join()  # not after a failure: the thread may hang in the loader; a daemon ends with the rank

    def _pump(self) -> None:
        try:
            for batch in self._batches:
                self._ready.put(TakenBatch(self._clock.now_ns(), batch))
                self._taken.get()
                if self._stopped:
                    return
        except BaseException as error:  # raised again in `take`
            self._ready.put(error)

    def take(self) -> TakenBatch:
        """Return the next batch and let the thread fetch the one after it."""
        try:
            taken = self._ready.get(timeout=self._timeout_seconds)
        except queue.Empty:
            raise DlemuError(
                f"rank {self._rank} has waited {self._timeout_seconds:g} s for a batch (timeout_seconds); its "
                "workers are stuck in reads: check the storage (`dmesg`, mount state), or raise timeout_seconds"
            ) from None
        if isinstance(taken, BaseException):
            raise taken
        self._taken.put(None)
        return taken
