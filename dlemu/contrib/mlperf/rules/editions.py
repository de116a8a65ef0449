"""The editions of MLPerf Storage since v2.0: training workloads, accelerators, and the settings that may change.

The data is in workloads.yaml. Source: the rules of each edition (https://github.com/mlcommons/storage).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from dlemu.contrib.mlperf.rules.core_config import WORKLOADS_YAML, Value

Reading = Literal["published", "today"]
"""How strictly to judge: `published`, as the round's submissions were judged; `today`, as the tool judges now."""


@dataclass(frozen=True, kw_only=True)
class Official:
    """An edition's settings for one workload on one accelerator."""

    batch_size: int
    computation_seconds: float
    epochs: int
    au_percent: float
    record_bytes: float
    samples_per_file: int
    settings: Mapping[str, Value] = field(default_factory=dict)
    """The workload file's other core settings, by DLIO 2.x's keys; those not listed have DLIO's defaults."""
    core_configs: frozenset[str] = frozenset()
    """`core-config-v1` hashes that mlpstorage's editions.yaml accepts for this workload."""


@dataclass(frozen=True, kw_only=True)
class Edition:
    """The rules in which one edition differs from the others; workloads.yaml explains them."""

    name: str
    officials: Mapping[tuple[str, str], Official]
    """(workload, accelerator) -> official settings."""
    closed_overrides: frozenset[str]
    checkpoint_workloads: tuple[str, ...] = ()
    checks_tree: bool
    reading: Reading = "today"
    spare_files: int = 0
    """Number of files that a dataset may lack, as v3.0's tool rounded down during its submission round."""
    accelerator_gb: Mapping[str, float] = field(default_factory=dict)


def _edition(name: str, rules: Mapping[str, Any]) -> Edition:
    officials = {
        (workload, accelerator): msgspec.convert(WORKLOADS_YAML["workloads"][workload] | settings, Official)
        for workload, accelerators in WORKLOADS_YAML["editions"][name].items()
        for accelerator, settings in accelerators.items()
    }
    overrides = frozenset(rules["closed_overrides"])
    return Edition(name=name, officials=officials, **{**rules, "closed_overrides": overrides})


EDITIONS = {name: _edition(name, rules) for name, rules in WORKLOADS_YAML["rules"].items()}
OPEN_OVERRIDES = frozenset({"framework", "dataset.format", "dataset.num_samples_per_file", "reader.data_loader"})
"""Keys that OPEN allows to override, in addition to those of CLOSED."""
PREFETCH_SIZES = (0, 1, 2)  # values of `reader.prefetch_size` that the text allows
MEASURED_RUNS = 5  # consecutive runs whose mean is the result
RUN_FOLDERS = MEASURED_RUNS + 1  # a warm-up run precedes the measured ones, in a folder beside theirs
FIRST_YEAR = 2025  # year of the first measurements for v2.0


def edition_rules(name: str, reading: Reading = "today") -> Edition:
    """Return an edition as it is read; the two readings differ for v3.0 alone."""
    edition = EDITIONS[name]
    if reading == "today" or not edition.checks_tree:
        return edition
    return replace(edition, reading=reading, spare_files=1, accelerator_gb={})


def newest_edition(workload: str, accelerator: str) -> Edition | None:
    """Return the newest edition that has this pair; None if no edition has it."""
    return next((each for each in reversed(EDITIONS.values()) if (workload, accelerator) in each.officials), None)
