"""How batches reach the trainer: fetched ahead by a thread (as PyTorch's pin-memory thread does) or one at a time."""

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
    """A batch and when it was in the trainer's hands."""

    ready_ns: int
    batch: Batch


class BatchQueue(Protocol):
    """Gives the trainer the next batch of an epoch."""

    def take(self) -> TakenBatch:
        """Return the next batch; DlemuError when it can't be made or does not come within the deadline."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OnDemandQueue:
    """The trainer itself requests batches from the loader, and only when it wants the batch."""

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
    """A thread takes batch k+1 off the loader as soon as the trainer has taken batch k: one batch deep, no deeper."""

    def __init__(self, batches: Iterator[Batch], clock: Clock, timeout_seconds: float, rank: int) -> None:
        self._batches, self._clock = batches, clock
        self._timeout_seconds, self._rank = timeout_seconds, rank
        self._handed: queue.SimpleQueue[TakenBatch | BaseException] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[None] = queue.SimpleQueue()  # threading.Semaphore is all Python: 10 us a batch
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
            self._thread.join()  # after a failure the thread may hang in the loader; as a daemon it ends with the rank

    def _pump(self) -> None:
        try:
            for batch in self._batches:
                self._handed.put(TakenBatch(self._clock.now_ns(), batch))
                self._taken.get()
                if self._stopped:
                    return
        except BaseException as error:  # carried to the trainer, whatever it is
            self._handed.put(error)

    def take(self) -> TakenBatch:
        """Return the next batch and let the thread fetch the one after it."""
        try:
            handed = self._handed.get(timeout=self._timeout_seconds)
        except queue.Empty:
            raise DlemuError(
                f"rank {self._rank} has waited {self._timeout_seconds:g} s for a batch (timeout_seconds); its "
                "workers are stuck in reads: check the storage (`dmesg`, mount state), or raise timeout_seconds"
            ) from None
        if isinstance(handed, BaseException):
            raise handed
        self._taken.put(None)
        return handed
