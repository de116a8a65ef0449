"""The settings that make a run's workload what it is: flat, with DLIO 2.x's keys and defaults, and their hash.

Which keys, how values are written and the hash `core-config-v1` are those of mlpstorage (`mlpstorage_py/provenance.py`
and `rules/core_config_keys.yaml`, https://github.com/mlcommons/storage): two runs with one hash ran one workload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Value = str | int | float | bool

_MOST_SETTINGS = 10_000
"""Aliases of YAML make a small file a mapping without end."""
CORE_SECTIONS = ("model.", "workflow.", "checkpoint.")
"""Sections of which every key counts, but for the folder of checkpoints."""
CORE_KEYS = frozenset(
    {
        "framework",
        "metric.au",
        "dataset.format",
        "dataset.num_samples_per_file",
        "dataset.record_length",
        "dataset.record_length_stdev",
        "dataset.record_length_resize",
        "dataset.record_length_bytes",
        "dataset.record_length_bytes_stdev",
        "dataset.record_length_bytes_resize",
        "reader.data_loader",
        "reader.batch_size",
        "reader.file_shuffle",
        "reader.sample_shuffle",
        "reader.shuffle_size",
        "train.epochs",
        "train.computation_time",
        "train.computation_time_stdev",
        "train.total_training_steps",
    }
)
SITE_KEYS = frozenset({"checkpoint.checkpoint_folder"})
PHASE_KEYS = frozenset({"checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"})
"""What distinguishes the write phase of a checkpoint workload from its read phase: it counts in training only."""
_SPELLINGS = {
    "dataset.record_length": "dataset.record_length_bytes",
    "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
    "dataset.record_length_resize": "dataset.record_length_bytes_resize",
    "checkpoint.model_size": "model.model_size",
    "model": "model.name",
    "train.computation_time.mean": "train.computation_time",
    "train.computation_time.stdev": "train.computation_time_stdev",
    "dataset.record_length_bytes.mean": "dataset.record_length_bytes",
    "metric.exclude_start_steps": "output.metric.exclude_start_steps",
    "metric.exclude_end_steps": "output.metric.exclude_end_steps",
}
"""How v1.0, or DLIO's longer forms, spell a key -> DLIO 2.x's key."""
DEFAULTS: Mapping[str, Value] = {
    "dataset.record_length_bytes_stdev": 0,
    "dataset.record_length_bytes_resize": 0,
    "reader.file_shuffle": "off",
    "reader.sample_shuffle": "off",
    "train.computation_time_stdev": 0,
    "train.total_training_steps": -1,
}
"""What a setting is that a configuration leaves out (`ConfigArguments` of DLIO)."""


def settings_of(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a `workload` mapping with their dotted keys; of a file made to be endless, the first."""
    return islice(flat(workload), _MOST_SETTINGS)


def flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted key."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def canonical(value: Any) -> Any:
    """Return a value as it is compared: 7, 7.0 and "7" are one, and so are true and "True"."""
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

    With `checkpointing` the list of keys is that of workloads that only save and load checkpoints.
    """
    is_part = is_checkpoint_core if checkpointing else is_core
    core = {key: canonical(value) for key, value in settings_of(workload) if is_part(key)}
    text = json.dumps(core, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_core(key: str) -> bool:
    """Return whether a key, as it is spelled in a configuration, is one that makes the workload."""
    return (key in CORE_KEYS or key.startswith(CORE_SECTIONS)) and key not in SITE_KEYS


def is_checkpoint_core(key: str) -> bool:
    """Return whether a key is one that makes a workload of checkpoints alone."""
    return (key == "framework" or key.startswith(CORE_SECTIONS)) and key not in SITE_KEYS | PHASE_KEYS


def effective(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a `workload` mapping by DLIO 2.x's keys, with DLIO's defaults for those left out.

    YAML reads a bare `off` as false; a shuffle that is false is off.
    """
    settings: dict[str, Any] = dict(DEFAULTS)
    for key, value in settings_of(workload):
        settings[_SPELLINGS.get(key, key)] = canonical(value)
    for key in ("reader.file_shuffle", "reader.sample_shuffle"):
        if settings[key] is False:
            settings[key] = "off"
    return settings
