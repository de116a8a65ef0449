"""TensorFlow's `tf.data` and its record reader, for tfrecord files.

Only the traits are here, such as the read-ahead; the `Loader`, which imports TensorFlow, is in `_tf_loader`.
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

_BUFFER_BYTES = 256 << 10  # read size of tf.data.TFRecordDataset without `reader.transfer_size`
# Bytes of records to take from a file per turn; two turns of each file are in memory. Each turn wakes another thread of
# tf.data: with records of 100 kB, turns of 1 MiB are a tenth slower than turns of 2 MiB; 4 MiB are no faster
_TURN_BYTES = 2 << 20
_RANK_BYTES = 64 << 20  # private memory of a rank besides its buffers, if it is forked after TensorFlow 2.21's import


class Traits(LoaderTraits):
    """TensorFlow reads tfrecord files itself, from start to end; it has no reader for other formats."""

    framework = "TensorFlow"
    packages = ("tensorflow-cpu", "tensorflow")
    module = "tensorflow"
    extra = "tensorflow"
    formats = ("tfrecord",)
    pins = False

    def reads_files(self, dataset_format: str) -> bool:
        return dataset_format in self.formats

    def interleave(self, reader: Reader, dataset: DatasetSpec) -> Interleave | None:
        """Return how `read_threads` files take turns; None for formats that TensorFlow does not read itself.

        By default, tf.data opens twice as many files ahead as it reads at a time. dlemu does so only if files end
        within one turn, so that no thread is idle at the end of a file. With longer files, it opens none ahead: bytes
        read before the counted steps begin would make the storage look too fast in a short epoch.
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
        unassembled = ceil(samples_ahead(spec) / spec.phases["train"].batch_size)
        return spec.reader.prefetch_size + spec.computation_calls + 1 + unassembled

    def rank_bytes(self, spec: LoaderSpec) -> int:
        """Return the bytes of a rank's memory: records read ahead, batches in the making, batches ready or in use."""
        train = spec.phases["train"]
        record_bytes = train.fetch.nominal_sample_bytes
        image_bytes = train.fetch.resize_bytes or record_bytes
        in_the_making = spec.computation_calls + 1
        ready_or_in_use = spec.reader.prefetch_size + 2
        sample_bytes = in_the_making * (record_bytes + image_bytes) + ready_or_in_use * image_bytes
        return samples_ahead(spec) * record_bytes + train.batch_size * sample_bytes + _RANK_BYTES


def samples_ahead(spec: LoaderSpec) -> int:
    """Return how many samples have been read but are not in a batch: those in the shuffle window, and those read ahead.

    Of each open file, tf.data reads ahead the records that wait for its turn, one in transit, and one read buffer.
    """
    fetch = spec.phases["train"].fetch
    turns = spec.interleave or Interleave(files=1)
    samples_per_file = fetch.layout.num_samples_per_file
    buffered = ceil((spec.reader.transfer_size or _BUFFER_BYTES) / max(1, fetch.nominal_sample_bytes))
    if turns.files == 1:  # `PhasePipeline` then uses flat_map instead of interleave
        return spec.shuffle_window + min(samples_per_file, buffered)
    open_files = turns.files + turns.files_ahead
    return spec.shuffle_window + open_files * min(samples_per_file, 2 * turns.block_length + 1 + buffered)


def __getattr__(name: str) -> Any:
    """Import the `Loader`, and TensorFlow with it, once it is requested."""
    if name != "Loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # TensorFlow reads both at import; without the second, each rank would print a line about oneDNN
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    library("tensorflow", Traits.extra, "reader.data_loader=tensorflow")
    from dlemu.loaders._tf_loader import Loader

    return Loader
