"""Checks before a training run makes its dataset, so that a run that can't work fails at once and not hours later."""

from __future__ import annotations

from datagen.inspection import Dataset
from datagen.layout import layouts, nominal_sample_bytes
from dlemu.config.schema import Workload
from dlemu.jobs.training.enough import refuse_unjudged
from dlemu.jobs.training.plan import loader_class, make_job


def only_makes_data(workload: Workload) -> bool:
    """Return whether the workload generates its dataset and does not train."""
    return workload.workflow.generate_data and not workload.workflow.train


def check_before_making(workload: Workload, ranks: int, *, wants_verdict: bool = False) -> None:
    """Raise UserError where the run would fail on the finished dataset: too few samples, no framework, bad settings.

    Memory is checked when the dataset exists: the size of a batch buffer follows from its files.
    """
    if wants_verdict:
        refuse_unjudged(workload, ranks, workload.dataset.num_files_train, files_there=0)
    train, valid = layouts(workload.dataset)
    size_bytes = nominal_sample_bytes(workload.dataset)
    planned = Dataset(
        spec=workload.dataset,
        train=train,
        valid=valid if valid.num_files else None,
        manifest=None,
        max_file_bytes=size_bytes * train.num_samples_per_file,
        max_sample_bytes=size_bytes,
        total_bytes=(train.num_files + valid.num_files) * train.num_samples_per_file * size_bytes,
    )
    make_job(workload, ranks, planned, folder=workload.output.folder, started_at="")
    loader_class(workload)
