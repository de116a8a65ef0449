"""Whether a dataset has enough samples for a verdict on so many ranks, and how many would do: known before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from datagen import manifest
from datagen.errors import UserError
from datagen.layout import stored_sample_bytes
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import open_storage
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.schedule import make_schedule
from dlemu.report.units import size
from dlemu.results.wording import count
from dlemu.runner.events import Making
from dlemu.runner.job import NoVerdictError

ENOUGH_STEPS = 20
"""Of an epoch: enough for an interval of its AU beside what is prefetched (unet3d's laptop scale has as many)."""
WRITE_BYTES_PER_SECOND = 500e6
"""For estimates of how long a dataset takes to write; a middling drive's."""


_EXCLUSIONS = ("exclude_start_steps", "exclude_end_steps")


@dataclass(frozen=True, kw_only=True)
class Need:
    """What so many ranks need for a verdict."""

    files: int
    """To train on."""
    bytes: int
    """Nominal, of all files."""
    write_seconds: float
    train_seconds: float
    """Nominal: accelerators that never wait."""


def enough(workload: Workload, ranks: int, *, files: int = 0) -> Need:
    """Return what ENOUGH_STEPS an epoch take, and at least what the workload needs; or what so many files take."""
    reader, data, metric = workload.reader, workload.dataset, workload.metric
    wanted = ENOUGH_STEPS - 1 + metric.exclude_start_steps + metric.exclude_end_steps
    batch = reader.batch_size * ranks
    files = files or max(data.num_files_train, ceil(wanted * batch / data.num_samples_per_file))
    total = nominal_bytes(replace(data, num_files_train=files))
    steps = sum(epoch.steps for epoch in make_schedule(workload, steps_of(workload, ranks, files)))
    return Need(
        files=files,
        bytes=total,
        write_seconds=total / WRITE_BYTES_PER_SECOND,
        train_seconds=steps * mean_seconds(workload.train.computation_time),
    )


def nominal_bytes(data: DatasetSpec) -> int:
    """Return the bytes of a dataset's samples, those to train on and to evaluate with."""
    return (data.num_files_train + data.num_files_eval) * data.num_samples_per_file * stored_sample_bytes(data)


def steps_of(workload: Workload, ranks: int, files: int) -> int:
    """Return the steps of an epoch over so many files."""
    return files * workload.dataset.num_samples_per_file // (workload.reader.batch_size * ranks)


def can_be_judged(workload: Workload, steps: int) -> bool:
    """Return whether a verdict can come of epochs of so many steps: whether an AU is computed of any.

    Runs without computation and of an explicit number of steps want none.
    """
    metric, train = workload.metric, workload.train
    if mean_seconds(train.computation_time) <= 0 or train.total_training_steps > 0:
        return True
    if steps and metric.verdict == "rules":
        return True
    if steps > 1 and metric.verdict == "sustained":  # it is of the readers' supply, too
        return True
    left_out = metric.exclude_start_steps + metric.exclude_end_steps
    return any(block.steps > left_out for epoch in make_schedule(workload, steps) for block in epoch.blocks)


def too_small(workload: Workload, ranks: int) -> str:
    """Return why no verdict can come of the dataset that the workload needs; '' where one can."""
    files = workload.dataset.num_files_train
    if can_be_judged(workload, steps_of(workload, ranks, files)):
        return ""
    need = enough(workload, ranks)
    return (
        f"{files:,} files are too few for a verdict with {ranks} rank{'s' * (ranks != 1)}: set "
        f"dataset.num_files_train={need.files} or more ({size(need.bytes)}) for {ENOUGH_STEPS} steps per epoch; a "
        "dataset can't be extended once it is generated"
    )


def refuse_unjudged(workload: Workload, ranks: int, files: int, *, files_there: int, notes: Sequence[str] = ()) -> None:
    """Raise NoVerdictError if no verdict can come of so many training files; `notes` say what is in the folder."""
    steps = steps_of(workload, ranks, files)
    if can_be_judged(workload, steps):
        return
    if not steps:
        problem = f"{count(files, 'file')} can't fill one step of {count(ranks, 'rank')}."
        problem = " ".join([problem, *(f"{note[0].upper()}{note[1:]}." for note in notes)])
        raise NoVerdictError(problem, workload, ranks, files_there, enough(workload, ranks).files)
    metric = workload.metric
    settings = [f"metric.{key}={value}" for key in _EXCLUSIONS if (value := getattr(metric, key))]
    raise NoVerdictError(
        f"{steps} step{'s' * (steps != 1)} per epoch can't give a verdict: {' and '.join(settings)} leaves none to "
        "count.",
        workload,
        ranks,
        files_there,
        enough(workload, ranks).files,
        f"To run anyway, without a verdict: train.total_training_steps={steps * workload.train.epochs}"
        + (
            "; to count the first step of each epoch as well: metric.exclude_start_steps=0"
            if metric.exclude_start_steps
            else ""
        ),
    )


def to_make(workload: Workload, ranks: int, *, given: bool) -> Making:
    """Return the workload that makes what is missing of its dataset first, as much as these ranks need.

    A count that the user has `given` stays; a set that is there, or was begun, is used if it can give a verdict. Raises
    UserError where it can't.
    """
    made = manifest.read(workload.dataset.data_folder, open_storage(workload.storage_spec.buffered))
    files, there = workload.dataset.num_files_train, made.spec.num_files_train if made else 0
    if not given and workload.workflow.train and mean_seconds(workload.train.computation_time) > 0:
        files = there or enough(workload, ranks).files
        if not can_be_judged(workload, steps_of(workload, ranks, files)):
            raise UserError(
                f"{workload.dataset.data_folder} holds a dataset of {there:,} files, too few for {ranks} "
                f"rank{'s' * (ranks != 1)}, and a dataset can't be extended because its file names contain the "
                f"number of files. Set dataset.data_folder to an empty folder for {enough(workload, ranks).files:,}"
            )
    to_be = replace(
        workload,
        dataset=replace(workload.dataset, num_files_train=files),
        workflow=replace(workload.workflow, generate_data=True),
    )
    missing = 0 if made and made.complete else nominal_bytes(to_be.dataset)
    return Making(workload=to_be, bytes=missing, folder=to_be.dataset.data_folder)
