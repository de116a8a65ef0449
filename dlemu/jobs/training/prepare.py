"""What is checked before a training run's dataset is made: else it would show only once that is done."""

from __future__ import annotations

from datagen.inspection import Dataset
from datagen.layout import layouts, nominal_sample_bytes
from dlemu.config.schema import Workload
from dlemu.jobs.training.enough import refuse_unjudged
from dlemu.jobs.training.plan import loader_class, make_job


def only_makes_data(workload: Workload) -> bool:
    """Say whether the workload asks for its dataset and no training."""
    return workload.workflow.generate_data and not workload.workflow.train


def check_before_making(workload: Workload, ranks: int, *, wants_verdict: bool = False) -> None:
    """Raise UserError for what would else show only once the dataset is made: too few samples, no framework.

    Memory is checked later: what a batch takes of it is read off the files.
    """
    if wants_verdict:
        refuse_unjudged(workload, ranks, workload.dataset.num_files_train, files_there=0)
    train, valid = layouts(workload.dataset)
    size_bytes = nominal_sample_bytes(workload.dataset)
    to_be = Dataset(
        spec=workload.dataset,
        train=train,
        valid=valid if valid.num_files else None,
        manifest=None,
        max_file_bytes=size_bytes * train.num_samples_per_file,
        max_sample_bytes=size_bytes,
        total_bytes=(train.num_files + valid.num_files) * train.num_samples_per_file * size_bytes,
    )
    make_job(workload, ranks, to_be, folder=workload.output.folder, started_at="")
    loader_class(workload)
