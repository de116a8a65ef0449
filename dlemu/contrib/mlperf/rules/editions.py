"""The editions of MLPerf Storage since v2.0 on training: workloads, accelerators, and the settings that may change.

Source: mlcommons/storage (https://github.com/mlcommons/storage), the rules of each edition; the workloads themselves
are in workloads.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dlemu.contrib.mlperf.rules.core_config import ACCELERATORS, WORKLOADS, Value

Reading = Literal["published", "today"]
"""How strictly to judge: `published`, as submissions to the round were; `today`, as its tool has judged since then."""


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
    """The workload file's other core settings, by DLIO 2.x's keys; core settings not listed have DLIO's default."""
    core_configs: frozenset[str] = frozenset()
    """`core-config-v1` hashes that mlpstorage's editions.yaml accepts for this workload."""


@dataclass(frozen=True, kw_only=True)
class Edition:
    """The rules of one edition that differ from other editions'."""

    name: str
    officials: Mapping[tuple[str, str], Official]
    """(workload, accelerator) -> its settings."""
    closed_overrides: frozenset[str]
    """Keys that a submitter may override in CLOSED."""
    checkpoint_workloads: tuple[str, ...] = ()
    """Workloads that must save a checkpoint in training."""
    checks_tree: bool
    """The tool checks the submission's folders and files too, the number of runs and the time between them."""
    reading: Reading = "today"
    spare_files: int = 0
    """A dataset may be this many files too small: v3.0's tool rounded down while the round ran."""
    accelerator_gb: Mapping[str, float] = field(default_factory=dict)
    """Accelerator -> memory that checkpoints must fit into (v3.0, 4.3.4, Table 3); empty: not a rule of the edition."""

    def official(self, workload: str, accelerator: str) -> Official | None:
        """Return the settings of a workload on an accelerator, or None if the edition does not have that pair."""
        return self.officials.get((workload, accelerator))


def _officials(edition: str) -> dict[tuple[str, str], Official]:
    """Return the workloads of an edition on its accelerators, as workloads.yaml has them."""
    return {
        (workload, name): Official(**WORKLOADS[workload] | own | {"core_configs": frozenset(own["core_configs"])})
        for workload, accelerators in ACCELERATORS[edition].items()
        for name, own in accelerators.items()
    }


_CLOSED = frozenset(
    {
        *("dataset.num_files_train", "dataset.num_subfolders_train", "dataset.data_folder"),
        *("reader.read_threads", "reader.computation_threads", "reader.transfer_size", "reader.prefetch_size"),
        *("reader.odirect", "checkpoint.checkpoint_folder", "storage.storage_type", "storage.storage_root"),
    }
)
OPEN_OVERRIDES = frozenset({"framework", "dataset.format", "dataset.num_samples_per_file", "reader.data_loader"})
"""Keys that may be overridden in OPEN in addition."""
ODIRECT_WORKLOADS = ("unet3d",)
"""Workloads that may set `reader.odirect`."""
PREFETCH_SIZES = (0, 1, 2)
"""Values of `reader.prefetch_size` that the text allows."""
MEASURED_RUNS = 5
"""Consecutive runs whose mean is the result; a warm-up run precedes them, its folder is next to theirs."""
RUN_FOLDERS = MEASURED_RUNS + 1
FIRST_YEAR = 2025
"""Year of the first measurements for v2.0."""
_SET_BY_TOOL = frozenset(
    {
        *("dataset.skip_listing", "dataset.listing_validation_interval", "dataset.num_files_generated"),
        *("dataset.total_disk_bytes", "storage.storage_options.prefetch_window"),
        *("storage.storage_options.storage_library", "storage.storage_options.uri_scheme"),
        "storage.s3_force_path_style",
    }
)
"""Keys that mlpstorage v3.0 sets itself, and the prefetch window, which its checker allows."""

EDITIONS = {
    "2.0": Edition(
        name="2.0",
        officials=_officials("2.0"),
        closed_overrides=_CLOSED,
        checkpoint_workloads=("unet3d",),
        checks_tree=False,
    ),
    "3.0": Edition(
        name="3.0",
        officials=_officials("3.0"),
        closed_overrides=_CLOSED | _SET_BY_TOOL,
        checks_tree=True,
        accelerator_gb={"b200": 180, "mi355": 288, "h100": 80, "a100": 80},
    ),
}


def edition_read(name: str, reading: Reading = "today") -> Edition:
    """Return an edition's rules in the given reading; only for v3.0 the two readings differ."""
    edition = EDITIONS[name]
    if reading == "today" or not edition.checks_tree:
        return edition
    return replace(edition, reading=reading, spare_files=1, accelerator_gb={})


def newest_edition(workload: str, accelerator: str) -> Edition | None:
    """Return the newest edition that has this pair, or None."""
    having = [edition for edition in EDITIONS.values() if edition.official(workload, accelerator)]
    return having[-1] if having else None
