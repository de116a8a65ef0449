"""Checks that the dataset exists, is complete and large enough for a verdict. A missing one is only a warning."""

from __future__ import annotations

from dataclasses import replace

from datagen.errors import DlemuError
from dlemu.config import datagen_command
from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training.enough import can_be_judged, enough, steps_of
from dlemu.report.units import size

ORDER = 260


def check(facts: Facts) -> Check:
    workload, dataset = facts.workload, facts.dataset
    folder = workload.dataset.data_folder
    if dataset is None:
        files = workload.dataset.num_files_train
        if not can_be_judged(workload, steps_of(workload, workload.ranks, files)):
            files = enough(workload, workload.ranks).files
        wanted = replace(workload, dataset=replace(workload.dataset, num_files_train=files))
        observed, advice = f"{folder} does not exist yet", datagen_command(wanted)
        return Check(level="warn", observed=observed, wanted=f"a dataset of {files:,} files", advice=advice)
    if isinstance(dataset, DlemuError):
        raise dataset
    observed = f"{dataset.train.num_files:,} training files, {size(dataset.total_bytes)} in {folder}"
    steps = steps_of(workload, workload.ranks, dataset.train.num_files)
    if not can_be_judged(workload, steps):
        who = f"{workload.ranks} rank{'s' * (workload.ranks != 1)}"
        observed += f": {steps} step{'s' * (steps != 1)} per epoch for {who}, too few for a verdict"
        files = enough(workload, workload.ranks).files
        return Check(level="warn", observed=observed, wanted=f"dataset.num_files_train={files}")
    if dataset.notes:
        return Check(level="warn", observed=f"{observed}; {'; '.join(dataset.notes)}")
    return Check(level="ok", observed=observed)


CHECKS = {"dataset": check}
