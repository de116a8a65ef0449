"""What each edition of MLPerf Storage fixes for training: workloads, accelerators, and which settings may change.

Source: mlcommons/storage (https://github.com/mlcommons/storage), the workload files and the rules of each edition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Official:
    """One workload on one accelerator, as an edition has it."""

    batch_size: int
    computation_seconds: float
    epochs: int
    au_percent: float
    record_bytes: float
    samples_per_file: int


@dataclass(frozen=True, kw_only=True)
class Edition:
    """One edition's fixed part."""

    name: str
    officials: Mapping[tuple[str, str], Official]
    """(workload, accelerator) -> its settings."""
    closed_overrides: frozenset[str]
    open_overrides: frozenset[str]
    """Allowed in OPEN beyond those of CLOSED."""
    odirect_workloads: tuple[str, ...]
    checkpoint_workloads: tuple[str, ...]
    """Workloads that must save a checkpoint in training."""
    warm_up: bool
    """A warm-up run comes before the measured ones, in a folder of its own among theirs."""
    counts_runs: bool
    """Its tool refuses any other number of folders of runs."""
    checks_tree: bool
    """Its checker holds the whole tree against the rules: folders, files, and the time between runs."""
    exact_size: bool
    """The tool rounds the least dataset up and takes measured memory, so a run just below the bound is refused."""

    measured_runs: int = 5
    """A result is the mean of so many runs, one after another (v1.0 to v3.0)."""

    @property
    def run_folders(self) -> int:
        """Folders of runs that a result has."""
        return self.measured_runs + self.warm_up

    def official(self, workload: str, accelerator: str) -> Official | None:
        """Return the workload's settings, or None when the edition has no such pair."""
        return self.officials.get((workload, accelerator))


def _unet3d(computation_seconds: float) -> Official:
    return Official(
        batch_size=7,
        computation_seconds=computation_seconds,
        epochs=5,
        au_percent=90,
        record_bytes=146600628,
        samples_per_file=1,
    )


def _resnet50(computation_seconds: float) -> Official:
    return Official(
        batch_size=400,
        computation_seconds=computation_seconds,
        epochs=5,
        au_percent=90,
        record_bytes=114660.07,
        samples_per_file=1251,
    )


def _cosmoflow(computation_seconds: float) -> Official:
    return Official(
        batch_size=1,
        computation_seconds=computation_seconds,
        epochs=5,
        au_percent=70,
        record_bytes=2828486,
        samples_per_file=1,
    )


def _retinanet(batch_size: int, computation_seconds: float) -> Official:
    return Official(
        batch_size=batch_size,
        computation_seconds=computation_seconds,
        epochs=8,
        au_percent=85,
        record_bytes=322957,
        samples_per_file=1,
    )


_A100_H100 = {
    ("unet3d", "a100"): _unet3d(0.636),
    ("unet3d", "h100"): _unet3d(0.323),
    ("resnet50", "a100"): _resnet50(0.435),
    ("resnet50", "h100"): _resnet50(0.224),
    ("cosmoflow", "a100"): _cosmoflow(0.00551),
    ("cosmoflow", "h100"): _cosmoflow(0.00350),
}
_B200_MI355 = {
    ("unet3d", "b200"): _unet3d(0.162),
    ("retinanet", "b200"): _retinanet(24, 0.04755),
    ("retinanet", "mi355"): _retinanet(32, 0.0634),
}
_CLOSED = frozenset(
    {
        "dataset.num_files_train",
        "dataset.num_subfolders_train",
        "dataset.data_folder",
        "reader.read_threads",
        "reader.computation_threads",
        "reader.transfer_size",
        "reader.prefetch_size",
        "checkpoint.checkpoint_folder",
        "storage.storage_type",
        "storage.storage_root",
    }
)
_OPEN = frozenset({"framework", "dataset.format", "dataset.num_samples_per_file", "reader.data_loader"})
_BY_THE_TOOL = frozenset(
    {
        "dataset.skip_listing",
        "dataset.listing_validation_interval",
        "dataset.num_files_generated",
        "dataset.total_disk_bytes",
        "storage.storage_options.prefetch_window",
        "storage.storage_options.storage_library",
        "storage.storage_options.uri_scheme",
        "storage.s3_force_path_style",
    }
)
"""Keys that mlpstorage v3.0 sets by itself, and the prefetch window that its checker allows."""

EDITIONS = {
    edition.name: edition
    for edition in (
        Edition(
            name="1.0",
            officials=_A100_H100,
            closed_overrides=_CLOSED | {"profiling.profiler"},  # its benchmark.sh sets that
            open_overrides=_OPEN,
            odirect_workloads=(),
            checkpoint_workloads=(),
            warm_up=False,
            counts_runs=True,
            checks_tree=False,
            exact_size=False,
        ),
        Edition(
            name="2.0",
            officials=_A100_H100,
            closed_overrides=_CLOSED | {"reader.odirect"},
            open_overrides=_OPEN,
            odirect_workloads=("unet3d",),
            checkpoint_workloads=("unet3d",),
            warm_up=True,
            counts_runs=False,
            checks_tree=False,
            exact_size=False,
        ),
        Edition(
            name="3.0",
            officials=_B200_MI355,
            closed_overrides=_CLOSED | _BY_THE_TOOL | {"reader.odirect"},
            open_overrides=_OPEN,
            odirect_workloads=("unet3d",),
            checkpoint_workloads=(),
            warm_up=True,
            counts_runs=True,
            checks_tree=True,
            exact_size=True,
        ),
    )
}


def newest_edition(workload: str, accelerator: str) -> Edition | None:
    """Return the newest edition that has this pair, or None."""
    having = [edition for edition in EDITIONS.values() if edition.official(workload, accelerator)]
    return having[-1] if having else None
