"""The editions of MLPerf Storage since v2.0 on training: workloads, accelerators, and the settings that may change.

Source: mlcommons/storage (https://github.com/mlcommons/storage), the workload files and the rules of each edition, and
`mlpstorage_py/rules/editions.yaml` for the hashes of workloads (`core-config-v1`, see `core_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dlemu.contrib.mlperf.rules.core_config import Value

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


_UNET3D: Mapping[str, Value] = {
    "framework": "pytorch",
    "dataset.format": "npz",
    "dataset.record_length_bytes_stdev": 68341808,
    "dataset.record_length_bytes_resize": 2097152,
    "reader.data_loader": "pytorch",
    "reader.file_shuffle": "seed",
    "reader.sample_shuffle": "seed",
    "checkpoint.checkpoint_after_epoch": 5,
    "checkpoint.epochs_between_checkpoints": 2,
    "model.model_size": 499153191,
}
_RESNET50: Mapping[str, Value] = {
    "framework": "tensorflow",
    "dataset.format": "tfrecord",
    "dataset.record_length_bytes_resize": 150528,
    "reader.data_loader": "tensorflow",
}
_COSMOFLOW: Mapping[str, Value] = {
    "framework": "tensorflow",
    "dataset.format": "tfrecord",
    "dataset.record_length_bytes_stdev": 71311,
    "reader.data_loader": "tensorflow",
    "reader.file_shuffle": "seed",
    "reader.sample_shuffle": "seed",
    "reader.shuffle_size": 2,
}
_RETINANET: Mapping[str, Value] = {
    "framework": "pytorch",
    "dataset.format": "jpeg",
    "reader.data_loader": "pytorch",
    "reader.file_shuffle": "seed",
    "reader.sample_shuffle": "seed",
}
_UNET3D_BASE = Official(
    batch_size=7,
    computation_seconds=0.0,
    epochs=5,
    au_percent=90,
    record_bytes=146600628,
    samples_per_file=1,
    settings=_UNET3D,
)
_RESNET50_BASE = replace(
    _UNET3D_BASE, batch_size=400, record_bytes=114660.07, samples_per_file=1251, settings=_RESNET50
)
_COSMOFLOW_BASE = replace(_UNET3D_BASE, batch_size=1, au_percent=70, record_bytes=2828486, settings=_COSMOFLOW)
_RETINANET_BASE = replace(_UNET3D_BASE, epochs=8, au_percent=85, record_bytes=322957, settings=_RETINANET)
"""Settings of each workload that are the same on every accelerator."""


def _on(base: Official, computation_seconds: float, *core_configs: str, batch_size: int = 0) -> Official:
    """Return the settings of a workload on one accelerator."""
    hashes, batch_size = frozenset(core_configs), batch_size or base.batch_size
    return replace(base, batch_size=batch_size, computation_seconds=computation_seconds, core_configs=hashes)


# Two hashes per workload: with the older keys and with v2.0's. For unet3d on b200: with and without checkpoints.
_A100_H100 = {
    ("unet3d", "a100"): _on(_UNET3D_BASE, 0.636, "4c86124e6f33db13", "691cea309c4f2f52"),
    ("unet3d", "h100"): _on(_UNET3D_BASE, 0.323, "f4d46006aa421634", "0f3dd7a4bf6433a3"),
    ("resnet50", "a100"): _on(_RESNET50_BASE, 0.435, "61ae77b994223584", "4a03838105aa5808"),
    ("resnet50", "h100"): _on(_RESNET50_BASE, 0.224, "c8ec10780f4c9bd7", "03a7be3df904e1e7"),
    ("cosmoflow", "a100"): _on(_COSMOFLOW_BASE, 0.00551, "329a3541eb5c1a36", "b49b896e947a408b"),
    ("cosmoflow", "h100"): _on(_COSMOFLOW_BASE, 0.00350, "54541a1d49e87763", "4b7b36339a2a5b0d"),
}
_B200_MI355 = {
    ("unet3d", "b200"): _on(_UNET3D_BASE, 0.162, "0d3ad0dec188becd", "f636f5a57473fca2"),
    ("retinanet", "b200"): _on(_RETINANET_BASE, 0.04755, "20c73f53486caba0", batch_size=24),
    ("retinanet", "mi355"): _on(_RETINANET_BASE, 0.0634, "66c43604eb650987", batch_size=32),
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
        officials=_A100_H100,
        closed_overrides=_CLOSED,
        checkpoint_workloads=("unet3d",),
        checks_tree=False,
    ),
    "3.0": Edition(
        name="3.0",
        officials=_B200_MI355,
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
