"""The core settings, which define a workload, by DLIO 2.x's keys and with its defaults; and their hash.

Runs with equal hashes had equal workloads. The keys, the form of values and the hash `core-config-v1` are mlpstorage's
(`mlpstorage_py/provenance.py` and `rules/core_config_keys.yaml`, https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from dlemu.contrib.mlperf.rules.known import rules_file

Value = str | int | float | bool

_MAX_SETTINGS = 10_000  # read from one file: with YAML's aliases, a small file can expand to an endless mapping
CORE_SECTIONS = ("model.", "workflow.", "checkpoint.")  # all their keys are core settings, except SITE_KEYS
WORKLOADS_YAML = rules_file("workloads.yaml")
CORE_KEYS = frozenset(WORKLOADS_YAML["core_keys"])
SITE_KEYS = frozenset({"checkpoint.checkpoint_folder"})  # differ from site to site
PHASE_KEYS = frozenset({"checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"})
"""Keys that differ between the write and the read call of a checkpoint result: core settings of training only."""
# The comments in workloads.yaml explain these four.
_SPELLINGS: Mapping[str, str] = WORKLOADS_YAML["spellings"]
DEFAULTS: Mapping[str, Value] = WORKLOADS_YAML["defaults"]
OTHER_DEFAULTS: Mapping[str, Any] = WORKLOADS_YAML["other_defaults"]
NEVER_SET: Mapping[str, Any] = WORKLOADS_YAML["never_set"]


def settings_of(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of the settings in a `workload` mapping, at most `_MAX_SETTINGS` of them."""

    def flat(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in section.items():
            if isinstance(value, Mapping):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    return islice(flat(workload, ""), _MAX_SETTINGS)


def canonical(value: Any) -> Any:
    """Return a value in the form in which values are compared: 7, 7.0 and "7" are equal, as are true and "True"."""
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            value = int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


def core_config_hash(workload: Mapping[str, Any], *, checkpointing: bool = False) -> str:
    """Return the `core-config-v1` hash of a `workload` mapping; `checkpointing`: of a workload without training."""
    is_hashed = is_checkpoint_core if checkpointing else is_core
    core = {key: canonical(value) for key, value in settings_of(workload) if is_hashed(key)}
    text = json.dumps(core, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_core(key: str) -> bool:
    """Return whether a key, as spelled in a configuration, is a core setting of training."""
    return (key in CORE_KEYS or key.startswith(CORE_SECTIONS)) and key not in SITE_KEYS


def is_checkpoint_core(key: str) -> bool:
    """Return whether a key is a core setting of a workload that only saves and loads checkpoints."""
    return (key == "framework" or key.startswith(CORE_SECTIONS)) and key not in SITE_KEYS | PHASE_KEYS


def effective(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a `workload` mapping by DLIO 2.x's keys, completed with DLIO's defaults."""
    settings: dict[str, Any] = dict(DEFAULTS)
    for key, value in settings_of(workload):
        settings[_SPELLINGS.get(key, key)] = canonical(value)
    for key in ("reader.file_shuffle", "reader.sample_shuffle"):
        if settings[key] is False:
            settings[key] = "off"  # which YAML reads as false
    return settings
