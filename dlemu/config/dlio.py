"""DLIO's words, old and new: which key is ours by another name, which has no effect here, which is not possible yet.

The keys are those that DLIO 1.0 to 3.0 read from a workload file (its `LoadConfig`), and a few of its first releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str, ...]
"""The parts of a dotted key."""

RENAMED_SECTIONS = {"data_reader": "reader"}

RENAMED_KEYS = {
    "model.model_size": "model.model_size_bytes",
    "checkpoint.model_size": "model.model_size_bytes",
    "checkpoint.model_size_bytes": "model.model_size_bytes",
    "checkpoint.optimization_groups": "model.optimization_groups",
    "checkpoint.num_layers": "model.num_layers",
    "checkpoint.layer_parameters": "model.layer_parameters",
    "dataset.record_length": "dataset.record_length_bytes",
    "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
    "dataset.record_length_resize": "dataset.record_length_bytes_resize",
    "dataset.num_dset_per_record": "dataset.hdf5.num_dset_per_record",
    "dataset.chunk_dims": "dataset.hdf5.chunk_dims",
    "dataset.max_shape": "dataset.hdf5.max_shape",
    "dataset.parquet.compression": "dataset.compression",
    "output.metric.exclude_start_steps": "metric.exclude_start_steps",
    "output.metric.exclude_end_steps": "metric.exclude_end_steps",
    "reader.preprocess_time_stdev": "reader.preprocess_time.stdev",
    "train.computation_time_stdev": "train.computation_time.stdev",
    "evaluation.eval_time_stdev": "evaluation.eval_time.stdev",
    "hydra.run.dir": "output.folder",
}
"""Old key -> the key that says the same here. DLIO writes a run into hydra's run folder unless `output.folder` says."""


@dataclass(frozen=True)
class Reason:
    """Why a key is taken out of a configuration, and the values of it that ask for nothing."""

    text: str
    harmless: tuple[Any, ...] = (None, False, [])

    def is_harmless(self, value: Any) -> bool:
        """Whether the value, or each one below it, asks for nothing."""
        if isinstance(value, Mapping):
            return all(self.is_harmless(item) for item in value.values())
        return value in self.harmless


NO_EFFECT = {
    "hydra": Reason("dlemu keeps hydra to composing; a run's folder is output.folder"),
    "profiling": Reason("dlemu records device and host itself", (None, "none", [])),
    "workflow.profiling": Reason("dlemu records device and host itself"),
    "workflow.debug": Reason("there is no debug workflow"),
    "output.log_file": Reason("the log is log.txt in the run's folder"),
    "storage.s3_force_path_style": Reason("it belongs to object storage"),
    "dataset.record_element_bytes": Reason("it follows from dataset.record_element_type"),
    "dataset.num_files_generated": Reason("how many files the dataset was made with is seen on disk", (None, 0)),
    "dataset.total_disk_bytes": Reason("how large the dataset is follows from its files", (None, 0)),
    "dataset.keep_files": Reason("dlemu never deletes a dataset", (None, True)),
    "dataset.generation_buffer_size": Reason("files are generated in pieces that fit the processor's cache"),
    "dataset.skip_listing": Reason("only rank 0 lists the dataset, once"),
    "dataset.listing_validation_interval": Reason("only rank 0 lists the dataset, once"),
    "reader.read_type": Reason("a sample is read when its batch is made", (None, "on_demand")),
    "reader.file_access": Reason("how files are shared follows from dataset.num_samples_per_file"),
    "reader.dont_use_mmap": Reason("files are mapped into memory only by dataset.format=mmap_indexed_binary"),
    "reader.data_loader_sampler": Reason("each loader has its own sampler"),
    "model.model_datatype": Reason("the size of a checkpoint is model.model_size_bytes"),
    "model.optimizer_datatype": Reason("the size of a checkpoint is model.model_size_bytes"),
    "checkpoint.time_between_checkpoints": Reason("it belongs to runs that only checkpoint"),
    "checkpoint.num_checkpoints_write": Reason("it belongs to runs that only checkpoint"),
    "checkpoint.num_checkpoints_read": Reason("it belongs to runs that only checkpoint"),
    "checkpoint.rank_sync": Reason("it belongs to runs that only checkpoint"),
    "checkpoint.recovery_rank_shift": Reason("it belongs to runs that read checkpoints back"),
    "checkpoint.mode": Reason("it belongs to checkpoints of a model's parts", (None, "default")),
    "checkpoint.randomize_tensor": Reason("the bytes of a checkpoint are random", (None, True)),
    "checkpoint.ksm": Reason("the memory of a checkpoint is not merged"),
}
"""Key, or section with all its keys -> why it changes nothing."""

NO_EFFECT_ON_FOLDERS = {"storage.storage_options": Reason("it belongs to object storage")}
"""Key -> why it changes nothing where the storage is not of the user's own."""

SECRET = re.compile(
    r"storage\.storage_options\..*(secret|passw|token|credential|access_?key|api_?key).*", re.IGNORECASE
)
"""Options that may be credentials."""
LEFT_OUT = Reason("credentials are never kept in a run's files; give them in the environment")

RENAMED_VALUES = {
    ("reader", "data_loader"): {"native_dali": "dali"},
    ("dataset", "compression"): {"uncompressed": "none"},
}
"""Section and key -> what DLIO calls a value -> what it is called here."""

OF_SOME_LOADERS = {
    "reader.computation_threads": Reason("the workers that read a sample also process it", (None, 1)),
    "reader.transfer_size": Reason("only TensorFlow reads tfrecord in transfers", (None, 0)),
    "reader.shuffle_size": Reason("shuffles are over the whole dataset, not a window", (None, 1024)),
}
"""Key -> why it changes nothing with a loader that does not say that it uses it; harmless are the schema's defaults."""

_BYTES = Reason("samples are shipped as bytes", (None, "uint8"))

UNSUPPORTED = {
    "dataset.parquet.read_mode": Reason("row groups are read whole", (None, "row_group")),
    "reader.transformed_record_dims": Reason("the bytes shipped are dataset.record_length_bytes_resize"),
    "reader.transformed_record_element_type": _BYTES,
    "reader.reader_classname": Reason("a reader of your own is a dotted name in dataset.format"),
    "reader.data_loader_classname": Reason("a loader of your own is a dotted name in reader.data_loader"),
    "checkpoint.checkpoint_mechanism_classname": Reason("there is one way to write a checkpoint"),
}
"""Key, or section with all its keys -> what is missing. Leaving it out in silence would change data or meaning."""

NO_CHECKPOINT = Reason("it shapes checkpoints, and workflow.checkpoint is false", (None, -1, []))
CHECKPOINT_SHAPE = Reason(
    "a checkpoint is model.model_size_bytes of bytes, not a model's parts;"
    " give that size instead, or set workflow.checkpoint=false",
    (None, -1, []),
)
CHECKPOINT_SHAPE_KEYS = (
    "model.transformer",
    "model.parallelism",
    "model.optimization_groups",
    "model.layer_parameters",
    "model.num_layers",
)
"""Keys from which DLIO computes a checkpoint's parts; they matter only to a workload that checkpoints."""


def renamed(path: KeyPath, value: Any) -> KeyPath:
    """Return the path of the key that says here what `path` says in DLIO; the value tells `model: NAME` apart."""
    if not path:
        return path
    if path == ("model",) and not isinstance(value, Mapping):
        return ("model", "name")
    path = (RENAMED_SECTIONS.get(path[0], path[0]), *path[1:])
    key = ".".join(path)
    return tuple(RENAMED_KEYS[key].split(".")) if key in RENAMED_KEYS else path
