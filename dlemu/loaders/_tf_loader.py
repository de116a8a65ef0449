"""The `tensorflow` loader: which batches come from where, and how a pipeline is run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from datagen.errors import DlemuError
from dlemu.loaders._heap import keep_freed_memory
from dlemu.loaders._process import lowered
from dlemu.loaders._tf_fetched import Fetched
from dlemu.loaders._tf_records import Records
from dlemu.loaders.loader_base import Batch, BatchTrace, LoaderSpec


class Loader:
    """The `tensorflow` loader.

    Of tfrecord files a batch is a tensor of strings, one a sample. Their order is TensorFlow's, and each epoch holds
    exactly the planned samples. Of all others it is uint8 arrays over a shared slot, in planned order.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        phases, turns = dict(spec.phases), spec.interleave
        self._records = {} if turns is None else {name: Records(spec, phase, turns) for name, phase in phases.items()}
        self._fetched = Fetched(spec, phases if turns is None else {})

    def start(self) -> None:
        """Keep TensorFlow's own threads few: a rank has its share of the cores, and no accelerator.

        Its graph optimizer is off: it would go over each function of the pipeline at the start of each epoch, for
        tens of ms in which nothing is read, and finds nothing to mend in them.
        """
        keep_freed_memory()  # before its threads begin
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.set_visible_devices([], "GPU")
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
        dataset = self._fetched.dataset(phase, epoch, steps, made)
        running = _run(dataset, max(1, self._spec.read_threads), self._spec.nice)
        return self._fetched.batches(phase, running, made)

    def explain(self, error: Exception) -> DlemuError | None:
        """Threads do not die by themselves."""
        return None

    def close(self) -> None:
        """Free the ring; threads end with the pipelines that own them."""
        self._fetched.close()


def _run(dataset: Any, threads: int, nice: int) -> Iterator[list[Any]]:
    """Start a pipeline on threads of its own and deliver its elements, each a list of tensors.

    Autotuning is off: its thread can hold up the end of a pipeline for seconds, and threads and buffers are the
    workload's to choose. So is rewriting the graph, which finds nothing to mend here and takes tens of ms an epoch.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    yield from lowered(partial(_begun, dataset.with_options(options)), nice)


def _begun(dataset: Any) -> Iterator[list[Any]]:
    """Start the pipeline by taking its first element, and return all its elements."""
    elements = _elements(dataset)
    return itertools.chain(list(itertools.islice(elements, 1)), elements)


def _elements(dataset: Any) -> Iterator[list[Any]]:
    """Iterate a dataset by the operations that its own iterator is made of.

    That one looks at the structure of each element again: 0.2 to 0.4 ms of Python, while batches of small records are
    ready in less than one.
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
