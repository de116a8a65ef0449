"""The `tensorflow` loader: it chooses the pipeline by the dataset's format, and runs it."""

from __future__ import annotations

import itertools
import queue
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from datagen.errors import DlemuError, UserError
from dlemu.loaders._process import call_niced, keep_freed_memory
from dlemu.loaders._slots import SharedSlots
from dlemu.loaders._tf_records import Records
from dlemu.loaders.loader_base import Batch, BatchMaker, BatchTrace, LoaderSpec, Phase, Samples
from dlemu.loaders.traits_base import traits_of

_plain = tf.autograph.experimental.do_not_convert
"""Marks functions without Python control flow, which TensorFlow need not rewrite for its graphs."""


class Loader:
    """The `tensorflow` loader.

    With tfrecord files a batch is a tensor of strings, one per sample. TensorFlow decides their order; each epoch holds
    exactly the planned samples. With all other formats a batch is uint8 arrays over a shared slot, in planned order.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        phases, turns = dict(spec.phases), spec.interleave
        self._records = {} if turns is None else {name: Records(spec, phase, turns) for name, phase in phases.items()}
        self._mapped = _Mapped(spec, phases if turns is None else {})

    def start(self) -> None:
        """Configure TensorFlow for a rank: few threads of its own, because ranks share the cores, and no GPU.

        Its graph optimizer is off: at the start of each epoch it would go over each function of the pipeline, for tens
        of ms in which nothing is read, and finds nothing to improve.
        """
        keep_freed_memory()  # before its threads begin
        try:
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError as error:  # its threads did not survive the fork of this rank
            raise UserError(
                "the Python program has used TensorFlow before it called dlemu: call dlemu first, or run `dlemu train`"
            ) from error
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        for records in self._records.values():
            records.trace()

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        """Deliver the batches of one epoch."""
        if not steps:
            return iter(())
        records = self._records.get(phase)
        if records is not None:
            running = _run(records.dataset(epoch, steps), self._spec.computation_threads, self._spec.nice)
            return records.batches(epoch, running, steps)
        made: dict[int, BatchTrace | DlemuError] = {}
        dataset = self._mapped.dataset(phase, epoch, steps, made)
        running = _run(dataset, max(1, self._spec.read_threads), self._spec.nice)
        return self._mapped.batches(phase, running, made)

    def explain(self, error: Exception) -> DlemuError | None:
        """Threads do not die by themselves."""
        return None

    def close(self) -> None:
        """Free the slots; threads end with the pipelines that own them."""
        self._mapped.close()


class _Mapped:
    """Batches of formats that `tf.data` has no reader for: a parallel map over steps reads each into a shared slot.

    A map over step numbers, not `from_generator`: a generator runs in one thread at a time, and each of its tensors is
    copied. Here `read_threads` batches are read at a time, and only step numbers pass through `tf.data`.
    """

    def __init__(self, spec: LoaderSpec, phases: dict[str, Phase]) -> None:
        own = replace(spec, phases=phases)
        self._threads, self._prefetch = max(1, spec.read_threads), spec.prefetch_size
        self._slots = traits_of("tensorflow").batch_buffers(spec)
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
        """Return the trace or, as a value, the error: TensorFlow would turn a raised one into text."""
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
        """Deliver the batches of the running pipeline, in order."""
        for (step,) in elements:
            trace = made.pop(int(step.numpy()))
            if isinstance(trace, DlemuError):
                raise trace
            yield Batch(self._samples(phase, trace), trace)

    def _samples(self, phase: str, trace: BatchTrace) -> Any:
        """Return the samples as arrays over the slot: no copy."""
        slot, resize = self._memory.slot(trace.slot), self._resize[phase]
        if resize:
            return np.frombuffer(slot, np.uint8, trace.samples * resize).reshape(trace.samples, -1)
        return Samples(slot, trace.places, _array)

    def close(self) -> None:
        """Free the slots."""
        self._memory.close()


def _array(slot: memoryview, start: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(slot, np.uint8, size, start)


def _run(dataset: Any, threads: int, nice: int) -> Iterator[list[Any]]:
    """Start a pipeline on threads of its own and deliver its elements, each a list of tensors.

    Autotuning is off: its thread can delay the end of a pipeline for seconds, and the workload sets the number of
    threads and buffers. So is graph rewriting, which finds nothing to improve here and takes tens of ms per epoch.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    yield from call_niced(partial(_begun, dataset.with_options(options)), nice)


def _begun(dataset: Any) -> Iterator[list[Any]]:
    """Start the pipeline by taking its first element, and return all its elements."""
    elements = _elements(dataset)
    return itertools.chain(list(itertools.islice(elements, 1)), elements)


def _elements(dataset: Any) -> Iterator[list[Any]]:
    """Iterate a dataset by the raw operations below Python's `iter(dataset)`.

    The latter examines the structure of each element again: 0.2 to 0.4 ms of Python, while batches of small records
    are ready in less than 1 ms.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    kinds = {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}
    iterator = tf.raw_ops.AnonymousIteratorV3(**kinds)
    tf.raw_ops.MakeIterator(dataset=tf.data.experimental.to_variant(dataset), iterator=iterator)
    while True:
        try:
            element = tf.raw_ops.IteratorGetNext(iterator=iterator, **kinds)
        except tf.errors.OutOfRangeError:
            return
        yield element
