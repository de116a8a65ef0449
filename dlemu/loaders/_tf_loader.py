"""The `tensorflow` loader: `tf.data` pipelines over tfrecord files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from datagen.errors import DatasetError, UserError
from datagen.formats.format_base import damaged, damaged_own_file
from datagen.formats.tfrecord import around_image
from datagen.layout import NO_PLACES
from dlemu.config.duration import is_zero
from dlemu.loaders.loader_base import Batch, BatchTrace, LoaderSpec, Phase, Preprocessing
from dlemu.loaders.loader_base import Loader as LoaderBase
from dlemu.machine.thread_accounting import process_storage_bytes
from dlemu.plan.samples import hash_samples
from dlemu.plan.streams import StreamPlan

FRAMING_BYTES = 16  # bytes around each record: length (8), CRC of the length (4), CRC of the record (4)
_FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "size": tf.io.FixedLenFeature([], tf.int64)}
# Marks a function without `if` and `for`: TensorFlow would search it for these, which would delay the first epoch
_plain = tf.autograph.experimental.do_not_convert
_NUMBER, _NUMBERS = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)
_RECORD = (_NUMBER, tf.TensorSpec([], tf.string))  # an element of a dataset: the sample's number and its record
# glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_MAX_INT = (1 << 31) - 1  # mallopt(3) takes an int
_GROW_BYTES = 64 << 20  # step by which the heap grows: with small steps, each large batch takes system calls
_MAX_ARENAS = 4  # of malloc: with one, threads wait for each other; each further one takes 25 MB in a fast pipeline
# Numbers in an element before the sample numbers: four times in s, bytes read, CPU time of preprocessing in ns
_LEADING_NUMBERS = 6


class Loader(LoaderBase):
    """The `tensorflow` loader, for tfrecord files. A batch is a tensor of strings, one per sample.

    TensorFlow decides the order of samples; each epoch has exactly the planned ones.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        self._pipelines = {name: PhasePipeline(spec, phase) for name, phase in spec.phases.items()}

    def start(self) -> None:
        """Configure TensorFlow for a rank: few threads of its own, because ranks share the cores, and no GPU.

        The graph optimizer is off: at the start of each epoch, it would examine the pipeline's functions for tens of
        ms, in which nothing is read, and find nothing to improve.
        """
        _keep_freed_memory()  # before TensorFlow starts threads
        try:
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError as error:  # TensorFlow was initialized before the fork, which its threads did not survive
            raise UserError(
                "the Python program has used TensorFlow before it called dlemu: call dlemu first, or run `dlemu train`"
            ) from error
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        for pipeline in self._pipelines.values():
            pipeline.trace()

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        if not steps:
            return iter(())
        pipeline = self._pipelines[phase]
        elements = _run(pipeline.dataset(epoch, steps), self._spec.computation_threads, self._spec.reader.nice)
        return pipeline.batches(epoch, elements, steps)


def _keep_freed_memory() -> None:
    """Let glibc's malloc keep freed memory for later allocations.

    By default, glibc returns large freed blocks to the kernel, which zeroes each page at its next use. In a pipeline
    that allocates each batch anew, that took more than half of all CPU time. Now the heap stays at its peak size.
    """
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _MAX_INT)
    mallopt(_TOP_PAD, _GROW_BYTES)
    mallopt(_ARENA_MAX, min(_MAX_ARENAS, len(os.sched_getaffinity(0))))


def _run(dataset: Any, threads: int, nice: int) -> Iterator[list[Any]]:
    """Start a pipeline on threads of its own and yield its elements, each a list of tensors.

    Autotuning is off: its thread can delay the end of a pipeline for seconds, and the workload sets the number of
    threads and buffers. Graph rewriting is off: it takes tens of ms per epoch and finds nothing to improve here.
    The raw operations are those that `iter(dataset)` uses, which also examines the structure of each element: this
    would take 0.2 to 0.4 ms, while batches of small records are ready in less than 1 ms.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    specs = tf.nest.flatten(dataset.element_spec)
    outputs = {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}
    iterator = tf.raw_ops.AnonymousIteratorV3(**outputs)
    take = partial(tf.raw_ops.IteratorGetNext, iterator=iterator, **outputs)

    def start() -> Any:
        pipeline = tf.data.experimental.to_variant(dataset.with_options(options))
        tf.raw_ops.MakeIterator(dataset=pipeline, iterator=iterator)
        return take()

    with contextlib.suppress(tf.errors.OutOfRangeError):
        # Threads that TensorFlow starts inherit the niceness of the thread that calls it (Linux)
        with ThreadPoolExecutor(1, "dlemu-starter", initializer=os.nice, initargs=(nice,)) as starter:
            first = starter.submit(start).result()
        yield first
        while True:
            yield take()


class PhasePipeline:
    """The pipeline that makes the batches of one phase.

    TensorFlow reports neither the time nor the number of its reads, so `read_calls` of a trace is 0. `app_bytes` counts
    all records read, with framing: those parsed, and those skipped because other ranks use them. Times of a batch:

        started | wait for records | assembled | wait for a thread | parsing | parse, crop, preprocess | finished
                |     read_ns      |                                         |       decode_ns         |
    """

    def __init__(self, spec: LoaderSpec, phase: Phase) -> None:
        assert spec.interleave is not None  # `Traits.interleave` returns one for tfrecord files
        self._spec = spec
        self._phase = phase
        self._interleave = spec.interleave
        self._streams = partial(cast(StreamPlan, phase.plan.plan).streams, phase.plan.rank)
        self._in_memory = phase.fetch.reads_nothing
        self._is_own = phase.fetch.dataset.source == "folder"  # a record may have any features: it is the sample
        self._traced: Any = None

    def trace(self) -> None:
        """Build the pipeline's graph once for all epochs, as training scripts do: it takes as long as many batches."""
        if self._in_memory:
            return
        streams = self._streams(1, 1)  # `first` and `stride` are the same in all epochs
        self._traced = tf.function(
            partial(self._read, streams.first, streams.stride),
            input_signature=[tf.TensorSpec([None], tf.string), _NUMBERS, _NUMBERS, _NUMBER, _NUMBER],
            autograph=False,
        )
        self._traced.get_concrete_function()

    def dataset(self, epoch: int, steps: int) -> Any:
        """Return the pipeline of an epoch's first `steps` batches."""
        if self._in_memory:
            return self._batches(self._records_in_memory(steps), steps, self._spec.seed, 0)
        streams = self._streams(epoch, steps)
        paths = tf.constant([self._phase.fetch.layout.path(file) for file in streams.files.tolist()], tf.string)
        return self._traced(paths, streams.files, streams.counts, np.int64(steps), np.int64(streams.seed))

    def _read(self, first: int, stride: int, paths: Any, files: Any, counts: Any, steps: Any, seed: Any) -> Any:
        """Return the batches of `counts` records of each file: record `first` and every `stride`-th after it."""
        records = self._interleaved(
            tf.data.Dataset.from_tensor_slices((paths, files, counts)),
            lambda path, file, count: self._records(path, file, count, first, stride),
        )
        return self._batches(records, steps, seed, stride)

    def _batches(self, records: Any, steps: Any, seed: Any, reads_per_record: int) -> Any:
        """Return batches of parsed records; `reads_per_record` records are read for each one parsed."""
        spec = self._spec
        if spec.shuffle_window:
            records = records.shuffle(spec.shuffle_window, seed=seed + spec.rank)
        batches = records.batch(self._phase.batch_size, drop_remainder=True)
        now = _clock(steps)
        # zip requests an element of each in order: the time before the batch, the batch, and the time when it is ready
        timed = tf.data.Dataset.zip((now, batches, now))
        parsed = timed.map(
            _plain(lambda started, batch, assembled: self._parse(started, batch, assembled, reads_per_record)),
            num_parallel_calls=spec.computation_calls,
        )
        return parsed.prefetch(spec.reader.prefetch_size) if spec.reader.prefetch_size else parsed

    def _interleaved(self, sources: Any, records: Callable[..., Any]) -> Any:
        """Return the records of `sources`, reading `Interleave.files` of them at a time, a block of each in turn.

        One source at a time is read by the thread that assembles batches (flat_map): handing over a record from a
        second thread takes as long as reading one of a few kB. Several are read by the operation beneath
        `Dataset.interleave`; that method itself would always open twice as many files ahead as it reads at a time.
        """
        turns = self._interleave
        if turns.files == 1:
            return sources.flat_map(_plain(records))

        def opened(*source: Any) -> Any:
            return tf.data.experimental.to_variant(records(*source))

        signature = tf.nest.flatten(sources.element_spec)
        interleaved = tf.raw_ops.ParallelInterleaveDatasetV4(
            input_dataset=tf.data.experimental.to_variant(sources),
            other_arguments=[],
            f=tf.function(opened, input_signature=signature, autograph=False).get_concrete_function(),
            cycle_length=turns.files,
            block_length=turns.block_length,
            buffer_output_elements=2 * turns.block_length,  # tf.data's default
            prefetch_input_elements=turns.files_ahead,
            num_parallel_calls=turns.files,
            output_types=[spec.dtype for spec in _RECORD],
            output_shapes=[spec.shape for spec in _RECORD],
        )
        return tf.data.experimental.from_variant(interleaved, _RECORD)

    def _records_in_memory(self, steps: int) -> Any:
        """Return the records for null storage, which has no files: the same Example in memory again and again."""
        size = self._phase.fetch.nominal_sample_bytes
        example = bytes(size).join(around_image(size))
        files = self._interleave.files
        total = steps * self._phase.batch_size
        records = self._interleaved(
            tf.data.Dataset.range(files),
            lambda source: tf.data.Dataset.zip(
                (tf.data.Dataset.range(source, total + files, files), tf.data.Dataset.from_tensors(example).repeat())
            ),
        )
        return records.take(total)

    def _records(self, path: Any, file: Any, count: Any, first: int, stride: int) -> Any:
        """Return the records of a file that this rank uses, each with its sample's number."""
        records = tf.data.TFRecordDataset(path, buffer_size=self._spec.reader.transfer_size or None)
        if stride > 1:
            records = records.shard(stride, first)
        begin = file * self._phase.fetch.layout.num_samples_per_file + first
        samples = tf.data.Dataset.range(begin, begin + count * stride, stride)
        return tf.data.Dataset.zip((samples, records))

    def _parse(self, started: Any, batch: tuple[Any, Any], assembled: Any, reads_per_record: int) -> tuple[Any, ...]:
        """Return the `_LEADING_NUMBERS` and sample numbers of a batch in one tensor, and its images."""
        parsing = tf.timestamp()
        samples, records = batch
        # Records that are read and skipped count with the size of the one parsed
        app_bytes = tf.reduce_sum(tf.cast(tf.strings.length(records), tf.int64) + FRAMING_BYTES) * reads_per_record
        with tf.control_dependencies([parsing]):
            images = records if self._is_own else tf.io.parse_example(records, _FEATURES)["image"]
        resize = self._phase.fetch.resize_bytes
        if resize:  # only if an image is longer: cropping copies all images
            is_longer = tf.reduce_max(tf.strings.length(images)) > resize
            images = tf.cond(is_longer, lambda: tf.strings.substr(images, 0, resize), lambda: images)
        preprocess_cpu_ns = tf.constant(0, tf.int64)
        if self._phase.preprocesses and not is_zero(self._spec.reader.preprocess_time):
            preprocess_cpu_ns = tf.ensure_shape(tf.numpy_function(self._preprocess, [samples], tf.int64), [])
        with tf.control_dependencies([images, preprocess_cpu_ns]):
            finished = tf.timestamp()
        # One tensor for all numbers, because each tensor of an element costs Python time in the trainer's thread. A
        # float64 holds integers up to 2^53 exactly, far more than there are samples
        counts = tf.cast(tf.stack([app_bytes, preprocess_cpu_ns]), tf.float64)
        times = tf.stack([started, assembled, parsing, finished])
        return tf.concat([times, counts, tf.cast(samples, tf.float64)], 0), images

    def _preprocess(self, samples: NDArray[np.int64]) -> np.int64:
        random = np.random.default_rng([self._spec.seed, *samples[:1].tolist()])
        _, cpu_ns = Preprocessing(self._spec.reader, random).spend(len(samples))
        return np.int64(cpu_ns)

    def batches(self, epoch: int, elements: Iterator[list[Any]], steps: int) -> Iterator[Batch]:
        """Yield `steps` batches of the running pipeline, with their traces. Raises DatasetError: a file is faulty."""
        wall_clock_ns = time.time_ns() - time.monotonic_ns()
        before = process_storage_bytes()
        for step in range(steps):
            try:
                element = next(elements, None)
            except tf.errors.OpError as error:
                raise self._damaged(epoch, steps, step, str(error.message)) from None
            if element is None:
                raise self._damaged(epoch, steps, step, "the files ended early")
            after = process_storage_bytes()
            yield _batch(element, wall_clock_ns, after - before)
            before = after

    def _damaged(self, epoch: int, steps: int, step: int, reason: str) -> DatasetError:
        """Return the error for the faulty file. TensorFlow does not name it: examine the files not delivered yet."""
        layout = self._phase.fetch.layout
        streams = self._streams(epoch, steps)
        complete_files = np.searchsorted(np.cumsum(streams.counts), step * self._phase.batch_size)
        for file in streams.files[max(0, int(complete_files) - self._interleave.files) :].tolist():
            if fault := _fault(layout.path(file), layout.num_samples_per_file, parse=not self._is_own):
                error = damaged(layout.path(file), fault)
                return damaged_own_file(error) if self._is_own else error
        return DatasetError(
            f"TensorFlow could not read a file in {layout.folder} ({reason}), but now can read them all: "
            "the storage failed temporarily; see the kernel's log (dmesg) for why"
        )


def _clock(steps: Any) -> Any:
    """Return a dataset whose elements are the times at which they are requested.

    With `use_inter_op_parallelism=False` of the raw operation, the thread that requests an element reads the clock.
    With `Dataset.map`, a thread of the pool would read it, and the requesting thread, which assembles batches, would
    wait for that thread while it parses whole batches.
    """

    def read_clock(step: Any) -> Any:
        with tf.control_dependencies([step]):
            return tf.timestamp()

    times = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(steps)),
        other_arguments=[],
        f=tf.function(read_clock, input_signature=[_NUMBER], autograph=False).get_concrete_function(),
        output_types=[tf.float64],
        output_shapes=[[]],
        use_inter_op_parallelism=False,
    )
    return tf.data.experimental.from_variant(times, tf.TensorSpec([], tf.float64))


def _batch(element: list[Any], wall_clock_ns: int, storage_bytes: int) -> Batch:
    """Return a batch and its trace; `wall_clock_ns` is the wall clock's time minus CLOCK_MONOTONIC."""
    numbers_tensor, images = element
    numbers = numbers_tensor.numpy()
    *times, app_bytes, preprocess_cpu_ns = numbers[:_LEADING_NUMBERS].tolist()
    started, assembled, parsing, finished = (int(seconds * 1e9) - wall_clock_ns for seconds in times)
    ids = numbers[_LEADING_NUMBERS:].astype(np.int64)
    trace = BatchTrace(
        slot=0,
        places=NO_PLACES,
        started_ns=started,
        finished_ns=min(max(started, finished), time.monotonic_ns()),  # the wall clock is exact to a microsecond
        read_ns=max(0, assembled - started),
        decode_ns=max(0, finished - parsing),
        worker=0,
        samples=len(ids),
        app_bytes=int(app_bytes),
        read_calls=0,
        sample_hash=hash_samples(ids),
        storage_bytes=storage_bytes,
        preprocess_cpu_ns=int(preprocess_cpu_ns),
    )
    return Batch(images, trace)


def _fault(path: str, samples: int, *, parse: bool) -> str:
    """Return a description of a file's fault; empty if it has none."""
    records = 0
    try:
        for record in tf.data.TFRecordDataset(path):
            if parse:
                tf.io.parse_single_example(record, _FEATURES)
            records += 1
    except tf.errors.NotFoundError:
        return "the file is gone"
    except tf.errors.OpError as error:
        return f"TensorFlow can't read record {records} ({str(error.message).splitlines()[0][-200:]})"
    return "" if records >= samples else f"it holds {records} records, not {samples} as in the settings"
