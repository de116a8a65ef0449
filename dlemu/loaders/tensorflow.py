"""TensorFlow's own `tf.data` with its record reader, for tfrecord files.

Only the traits are here, such as how far it reads ahead; the `Loader`, which imports TensorFlow, is in `_tf_loader`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from math import ceil
from typing import Any

from datagen.layout import nominal_sample_bytes
from datagen.registry import library
from datagen.spec import DatasetSpec
from dlemu.config.schema import Reader
from dlemu.loaders.loader_base import Interleave, LoaderSpec
from dlemu.loaders.traits_base import LoaderTraits

_BUFFER_BYTES = 256 << 10  # the read size of tf.data.TFRecordDataset where `reader.transfer_size` is not set
_TURN_BYTES = 2 << 20
"""Bytes of records to take from a file per turn. Each turn wakes another thread of tf.data. With records of 100 kB,
turns of 256 KiB are a fifth slower than turns of 1 MiB, which are a tenth slower than turns of 2 MiB; 4 MiB gain
nothing, and two turns of each file are in memory."""
_RANK_BYTES = 64 << 20
"""Private memory of a rank besides its buffers, measured with TensorFlow 2.21 forked after import, three epochs."""


class Traits(LoaderTraits):
    """TensorFlow itself reads tfrecord files, from their beginning; it has no reader of other formats."""

    framework = "TensorFlow"
    packages = ("tensorflow-cpu", "tensorflow")
    module = "tensorflow"
    extra = "tensorflow"
    formats = ("tfrecord",)
    pins = False

    def reads_files(self, dataset_format: str) -> bool:
        return dataset_format in self.formats

    def interleave(self, reader: Reader, dataset: DatasetSpec) -> Interleave | None:
        """Return the turns of `read_threads` files.

        tf.data would always begin twice as many files ahead as are read at a time. dlemu does so only with files that
        end within one turn, so that no thread is idle at each file's end. With longer files, reading less ahead is more
        exact: bytes read before a run's counted steps begin make a short epoch look faster than its storage.
        """
        if not self.reads_files(dataset.format):
            return None
        files = max(1, reader.read_threads)
        block_length = max(1, _TURN_BYTES // max(1, nominal_sample_bytes(dataset)))
        in_one_turn = dataset.num_samples_per_file <= block_length
        return Interleave(files=files, block_length=block_length, files_ahead=2 * files if in_one_turn else 0)

    def settings_used(self, dataset_format: str) -> Collection[str]:
        return ("reader.computation_threads", "reader.transfer_size", "reader.shuffle_size")

    def batches_ahead(self, spec: LoaderSpec) -> int:
        waiting = ceil(samples_ahead(spec) / spec.phases["train"].batch_size)
        return spec.reader.prefetch_size + spec.computation_calls + 1 + waiting

    def rank_bytes(self, spec: LoaderSpec) -> int:
        """Return the bytes of a rank's stream: records read ahead, batches in the making, batches ready or in use."""
        fetch, batch = spec.phases["train"].fetch, spec.phases["train"].batch_size
        record = fetch.nominal_sample_bytes
        shipped = fetch.resize_bytes or record
        being_made, ready = spec.computation_calls + 1, spec.reader.prefetch_size + 2
        batches_bytes = batch * (being_made * (record + shipped) + ready * shipped)
        return samples_ahead(spec) * record + batches_bytes + _RANK_BYTES


def samples_ahead(spec: LoaderSpec) -> int:
    """Return how many samples have been read and are in no batch yet: those in the shuffle window, and read ahead.

    For each file begun these are the records that wait for its turn, one under way, and those in the reader's buffer.
    """
    fetch, turns = spec.phases["train"].fetch, spec.interleave or Interleave(files=1)
    samples_per_file = fetch.layout.num_samples_per_file
    buffered = ceil((spec.reader.transfer_size or _BUFFER_BYTES) / max(1, fetch.nominal_sample_bytes))
    if turns.files == 1:  # flat_map, not interleave
        return spec.shuffle_window + min(samples_per_file, buffered)
    begun = turns.files + turns.files_ahead
    return spec.shuffle_window + begun * min(samples_per_file, 2 * turns.block_length + 1 + buffered)


def __getattr__(name: str) -> Any:
    """Import the `Loader`, and TensorFlow with it, once it is requested."""
    if name != "Loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # TensorFlow reads both when it is imported; without the second, each rank would print a line about oneDNN
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    library("tensorflow", Traits.extra, "reader.data_loader=tensorflow")
    from dlemu.loaders._tf_loader import Loader

    return Loader
