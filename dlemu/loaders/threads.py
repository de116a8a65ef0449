"""Reader threads in the trainer's process, without a framework; reads release the GIL."""

from __future__ import annotations

import itertools
import os
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from datagen.errors import DlemuError
from dlemu.loaders._slots import SharedSlots
from dlemu.loaders.loader_base import Batch, BatchMaker, BatchTrace, LoaderSpec, Samples, TimedBatches
from dlemu.loaders.loader_base import Loader as LoaderBase
from dlemu.loaders.traits_base import LoaderTraits


class Traits(LoaderTraits):
    pins = False


@dataclass
class _Epoch(TimedBatches):
    """An epoch's batches, at most `window` of which are ready or in the making."""

    futures: Iterator[Future[BatchTrace]]  # lazy: requesting the next future submits its batch to the threads
    window: int
    slots: SharedSlots
    submitted: deque[Future[BatchTrace]] = field(default_factory=deque)

    def take(self, timeout_seconds: float | None = None) -> Batch | None:
        self.submitted.extend(itertools.islice(self.futures, self.window - len(self.submitted)))
        if not self.submitted:
            raise StopIteration
        try:
            self.submitted[0].exception(timeout_seconds)
        except TimeoutError:
            return None
        trace = self.submitted.popleft().result()
        slot = self.slots.slot(trace.slot)
        return Batch(Samples(slot, trace.places, lambda slot, start, size: slot[start : start + size]), trace)


class Loader(LoaderBase):
    """The `threads` loader. A batch is the bytes of its samples, as views of a slot."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        self._threads = max(1, spec.reader.read_threads)
        self._window = spec.reader.read_threads * spec.reader.prefetch_per_worker or 1  # 1: nothing is read ahead
        self._slots = SharedSlots(spec.slots, spec.slot_bytes)
        self._local = threading.local()  # the `maker` of each thread
        self._pool = ThreadPoolExecutor(self._threads, "dlemu-reader")

    def start(self) -> None:
        """Allocate the batches' memory and start every thread."""
        self._slots.take_pages()
        barrier = threading.Barrier(self._threads)
        for future in [self._pool.submit(self._open, worker, barrier) for worker in range(self._threads)]:
            future.result()

    def _open(self, worker: int, barrier: threading.Barrier) -> None:
        """Prepare this thread. It is a task because an initializer of the pool would hide its exception."""
        try:
            os.nice(self._spec.reader.nice)  # on Linux, each thread has its own niceness
            self._local.maker = BatchMaker(self._spec, worker)
        finally:
            barrier.wait()  # otherwise, a thread that is ready early would also run the `_open` of another

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        futures = (self._pool.submit(self._make, phase, epoch, step) for step in range(1, steps + 1))
        return _Epoch(futures, self._window, self._slots)

    def _make(self, phase: str, epoch: int, step: int) -> BatchTrace:
        maker: BatchMaker = self._local.maker
        slot = step % self._spec.slots
        try:
            return maker.make(phase, epoch, step, slot, self._slots.slot(slot))
        except DlemuError:
            raise
        except Exception as error:
            raise DlemuError(f"a reader thread of rank {self._spec.rank} failed:\n{traceback.format_exc()}") from error

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._slots.close()
