"""Core settings: those that define a workload (with DLIO 2.x's keys and defaults), and their hash.

The keys, the form of values and the hash `core-config-v1` are mlpstorage's (`mlpstorage_py/provenance.py` and
`rules/core_config_keys.yaml`, https://github.com/mlcommons/storage): equal hashes mean that runs had equal workloads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Value = str | int | float | bool

_MAX_SETTINGS = 10_000
"""Settings read from one file: with YAML aliases a small file can expand to an endless mapping."""
CORE_SECTIONS = ("model.", "workflow.", "checkpoint.")
"""Sections whose keys are all core settings, except the folder of checkpoints, which differs from site to site."""
CORE_KEYS = frozenset(
    {
        *("framework", "metric.au", "dataset.format", "dataset.num_samples_per_file"),
        *("dataset.record_length", "dataset.record_length_stdev", "dataset.record_length_resize"),
        *("dataset.record_length_bytes", "dataset.record_length_bytes_stdev", "dataset.record_length_bytes_resize"),
        *("reader.data_loader", "reader.batch_size", "reader.file_shuffle", "reader.sample_shuffle"),
        *("reader.shuffle_size", "train.epochs", "train.computation_time", "train.computation_time_stdev"),
        "train.total_training_steps",
    }
)
SITE_KEYS = frozenset({"checkpoint.checkpoint_folder"})
PHASE_KEYS = frozenset({"checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"})
"""Keys that differ between the write and the read call of a checkpoint run: core settings of training only."""
_SPELLINGS = {
    "dataset.record_length": "dataset.record_length_bytes",
    "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
    "dataset.record_length_resize": "dataset.record_length_bytes_resize",
    "checkpoint.model_size": "model.model_size",
    "model": "model.name",
    "train.computation_time.mean": "train.computation_time",
    "train.computation_time.stdev": "train.computation_time_stdev",
    "dataset.record_length_bytes.mean": "dataset.record_length_bytes",
    "reader.preprocess_time.mean": "reader.preprocess_time",
    "reader.preprocess_time.stdev": "reader.preprocess_time_stdev",
    "metric.exclude_start_steps": "output.metric.exclude_start_steps",
    "metric.exclude_end_steps": "output.metric.exclude_end_steps",
}
"""A key as spelled by older versions of DLIO or in DLIO's longer form -> DLIO 2.x's key."""
DEFAULTS: Mapping[str, Value] = {
    "dataset.record_length_bytes_stdev": 0,
    "dataset.record_length_bytes_resize": 0,
    "reader.file_shuffle": "off",
    "reader.sample_shuffle": "off",
    "train.computation_time_stdev": 0,
    "train.total_training_steps": -1,
}
"""Value of a core setting that a configuration omits (DLIO's `ConfigArguments`)."""
OTHER_DEFAULTS: Mapping[str, Any] = {
    "reader.read_threads": 1,
    "reader.computation_threads": 1,
    "reader.prefetch_size": 2,
    "reader.transfer_size": "not set",
    "reader.odirect": False,
    "reader.data_loader": "tensorflow",
}
"""The same of settings whose defaults are not part of the hash: runs are compared by them."""
NEVER_SET: Mapping[str, Any] = {
    "dataset.compression": "none",
    "dataset.record_dims": [],
    "dataset.record_element_type": "uint8",
    "dataset.enable_chunking": False,
    "dataset.num_files_eval": 0,
    "reader.file_access": "multi",
    "reader.read_type": "on_demand",
    "reader.shuffle_size": 1024,
    "reader.preprocess_time": 0,
    "reader.preprocess_time_stdev": 0,
    "reader.reader_classname": "none",
    "reader.data_loader_classname": "none",
    "reader.data_loader_sampler": "none",
    "reader.transformed_record_dims": [],
    "reader.transformed_record_element_type": "uint8",
    "train.seed_change_epoch": True,
    "workflow.train": True,
    "workflow.generate_data": False,
    "workflow.evaluation": False,
}
"""DLIO's defaults of settings that change what is read, how or when, and that no workload of any edition changes.

The start method of workers and pinned memory are not among them: mlpstorage chooses the former for object stores.
"""


def settings_of(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a `workload` mapping with their dotted keys, at most `_MAX_SETTINGS`."""
    return islice(flat(workload), _MAX_SETTINGS)


def flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted key."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def canonical(value: Any) -> Any:
    """Return a value in the form used for comparison: 7, 7.0 and "7" become equal, as do true and "True"."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | list | tuple):
        return value
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, str):
        word = value.strip()
        if word.lower() in ("true", "false"):
            return word.lower() == "true"
        try:
            value = float(word) if not word.lstrip("+-").isdigit() else int(word)
        except ValueError:
            return word
    return int(value) if isinstance(value, float) and value.is_integer() else value


def core_config_hash(workload: Mapping[str, Any], *, checkpointing: bool = False) -> str:
    """Return the `core-config-v1` hash of a `workload` mapping: 16 hexadecimal digits of SHA-256.

    With `checkpointing`, the core settings are those of workloads that only save and load checkpoints.
    """
    is_part = is_checkpoint_core if checkpointing else is_core
    core = {key: canonical(value) for key, value in settings_of(workload) if is_part(key)}
    text = json.dumps(core, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_core(key: str) -> bool:
    """Return whether a key, as spelled in a configuration, is a core setting of training."""
    return (key in CORE_KEYS or key.startswith(CORE_SECTIONS)) and key not in SITE_KEYS


def is_checkpoint_core(key: str) -> bool:
    """Return whether a key is a core setting of a workload that only does checkpoints."""
    return (key == "framework" or key.startswith(CORE_SECTIONS)) and key not in SITE_KEYS | PHASE_KEYS


def effective(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a `workload` mapping by DLIO 2.x's keys, with DLIO's defaults for omitted ones.

    YAML reads a bare `off` as false, so a shuffle that is false is returned as "off".
    """
    settings: dict[str, Any] = dict(DEFAULTS)
    for key, value in settings_of(workload):
        settings[_SPELLINGS.get(key, key)] = canonical(value)
    for key in ("reader.file_shuffle", "reader.sample_shuffle"):
        if settings[key] is False:
            settings[key] = "off"
    return settings
