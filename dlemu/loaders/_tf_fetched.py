"""Formats that `tf.data` has no reader for: a parallel map over steps, whose function reads a batch into a shared slot.

A map over numbers, not `from_generator`: a generator is drawn on by one thread at a time, and each of its tensors is
copied. Here as many batches as there are threads are read at a time, and what `tf.data` hands on is a slot's number.
"""

from __future__ import annotations

import queue
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from datagen.errors import DlemuError
from dlemu.loaders._slots import SharedSlots
from dlemu.loaders.loader_base import Batch, BatchMaker, BatchTrace, LoaderSpec, Phase

_plain = tf.autograph.experimental.do_not_convert
"""There is no Python control flow for TensorFlow to rewrite."""
_HELD = 4
"""Slots beside those under way or ready: one that the pipeline hands over, two with the trainer, one being begun."""


class Fetched:
    """The batches of the phases given, made by `read_threads` makers."""

    def __init__(self, spec: LoaderSpec, phases: dict[str, Phase]) -> None:
        own = replace(spec, phases=phases)
        self._threads, self._prefetch = max(1, spec.read_threads), spec.prefetch_size
        self._slots = self._threads + self._prefetch + _HELD
        self._memory = SharedSlots(self._slots, own.slot_bytes)
        self._resize = {name: phase.fetch.resize_bytes for name, phase in phases.items()}
        self._rank = spec.rank
        self._idle: queue.SimpleQueue[BatchMaker] = queue.SimpleQueue()
        for worker in range(self._threads):
            self._idle.put(BatchMaker(own, worker))

    def dataset(self, phase: str, epoch: int, steps: int, made: dict[int, BatchTrace | DlemuError]) -> Any:
        """Return the pipeline of an epoch's steps; the trace of each is left in `made`."""

        def make(step: np.int64) -> np.int64:
            made[int(step)] = self._make(phase, epoch, int(step))
            return step

        numbers = tf.data.Dataset.range(1, steps + 1)
        ready = numbers.map(
            _plain(lambda step: tf.numpy_function(make, [step], tf.int64)),
            num_parallel_calls=self._threads,
            deterministic=True,
        )
        return ready.prefetch(self._prefetch) if self._prefetch else ready

    def _make(self, phase: str, epoch: int, step: int) -> BatchTrace | DlemuError:
        """Return the trace or, as a value, what went wrong: TensorFlow would make a text of it."""
        slot = step % self._slots
        maker = self._idle.get()
        try:
            return maker.make(phase, epoch, step, slot, self._memory.slot(slot))
        except DlemuError as error:
            return error
        except Exception:
            return DlemuError(f"a reader thread of rank {self._rank} failed:\n{traceback.format_exc()}")
        finally:
            self._idle.put(maker)

    def batches(
        self, phase: str, elements: Iterator[list[Any]], made: dict[int, BatchTrace | DlemuError]
    ) -> Iterator[Batch]:
        """Deliver what the running pipeline makes, in order."""
        for (step,) in elements:
            trace = made.pop(int(step.numpy()))
            if isinstance(trace, DlemuError):
                raise trace
            yield Batch(self._samples(phase, trace), trace)

    def _samples(self, phase: str, trace: BatchTrace) -> Any:
        """Return the samples as arrays over the slot: no copy."""
        slot = np.frombuffer(self._memory.slot(trace.slot), np.uint8)
        if self._resize[phase]:
            return slot[: trace.samples * self._resize[phase]].reshape(trace.samples, -1)
        return [slot[start : start + length] for start, length in trace.places]

    def close(self) -> None:
        """Free the slots."""
        self._memory.close()
