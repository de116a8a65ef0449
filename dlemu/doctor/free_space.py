"""There is space for a dataset that is not there yet, if the storage reports its free space."""

from __future__ import annotations

from dlemu.doctor.check_base import Check, Facts
from dlemu.report.units import size

NAME, ORDER = "free space", 240


def check(facts: Facts) -> Check | None:
    if facts.usable_dataset is not None:
        return None
    free_bytes = facts.storage.free_bytes(facts.folder or facts.workload.dataset.data_folder)
    return None if free_bytes is None else judge(free_bytes, facts.demand.dataset_gb)


def judge(free_bytes: int, dataset_gb: float) -> Check:
    observed, wanted = f"{size(free_bytes)} free", f"{size(round(dataset_gb * 1e9))} for the dataset"
    if free_bytes < dataset_gb * 1e9:
        advice = "free some, lower dataset.num_files_train, or set dataset.data_folder to another disk"
        return Check(name=NAME, level="fail", observed=observed, wanted=wanted, advice=advice)
    return Check(name=NAME, level="ok", observed=observed, wanted=wanted)
