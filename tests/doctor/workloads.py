"""A workload whose dataset `tests.datasets.make_dataset` makes."""

from __future__ import annotations

from pathlib import Path

from dlemu.config import load
from dlemu.config.schema import Workload


def small(folder: Path, *overrides: str) -> Workload:
    shape = ["dataset.record_length_bytes=40000", "dataset.record_length_bytes_stdev=15000"]
    return load([f"dataset.data_folder={folder}", "dataset.num_files_train=24", *shape, *overrides])
