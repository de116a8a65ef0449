"""The bytes and computation times of a planned run's batches, from its settings alone: plan, file sizes, durations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from datagen.formats.format_base import FORMATS, format_named
from datagen.layout import columns_of, has_own_length, nominal_sample_bytes, record_shapes
from datagen.registry import is_built_in
from datagen.spec import DatasetSpec
from dlemu.accelerators.accelerator_base import draw_ns
from dlemu.config.duration import draw_seconds, mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import TrainingJob, planned_dataset
from dlemu.metrics.rates import Floats
from dlemu.metrics.rows import Rows
from dlemu.plan.samples import Plan


def planned_job(workload: Workload, ranks: int) -> TrainingJob:
    """Return the job of a run of the workload with `ranks` ranks, on the dataset that its settings describe."""
    workflow = replace(workload.workflow, evaluation=False)
    return TrainingJob(
        workload=replace(workload, ranks=ranks, workflow=workflow),
        ranks=ranks,
        dataset=planned_dataset(workload.dataset),
        seed=workload.train.seed,
    )


def bytes_by_file(spec: DatasetSpec, *, received: bool = False) -> Floats:
    """Return the bytes read for a sample of each file, shape (files,), or (1,) if files do not differ.

    `received`: the settings are of someone else's result, so the size is nominal if the format's code is not dlemu's.
    """
    nominal = np.array([float(nominal_sample_bytes(spec))])
    is_untrusted = received and not is_built_in(FORMATS, spec.format)
    if is_untrusted or (has_own_length(spec) and not spec.record_length_bytes_quantiles) or columns_of(spec):
        return nominal
    shapes = record_shapes(spec, 0, spec.num_files_train if spec.sizes_vary else 1)
    sizes = format_named(spec.format).file_bytes(spec, shapes)
    return nominal if sizes is None else np.asarray(sizes / spec.num_samples_per_file, float)


def batch_bytes(
    plan: Plan, by_file: Floats, epoch: int, steps: int, *, group_rows: int = 0, workers: int = 1
) -> Floats:
    """Return the bytes of each batch in the first `steps` steps of an epoch, shape (ranks, steps).

    Row groups of `group_rows` are read as a whole, by the first of a worker's batches that has rows of them. A rank's
    `workers` take its batches in turn, and each worker keeps the row group in which its last batch ended.
    """
    first = plan.first_positions(np.arange(plan.ranks)[:, np.newaxis], np.arange(1, steps + 1))
    if len(by_file) == 1:
        batches = np.full(first.shape, float(by_file[0]) * plan.batch_size)
    else:
        positions = first[:, :, np.newaxis] + np.arange(plan.batch_size)
        files = plan.samples_at(epoch, positions.ravel()) // plan.num_samples_per_file
        batches = by_file[files].reshape(positions.shape).sum(axis=-1)
    if not group_rows:
        return batches
    file_rows = plan.num_samples_per_file
    groups_per_file = -(-file_rows // group_rows)  # rounded up
    first_group, last_group = (
        position // file_rows * groups_per_file + position % file_rows // group_rows
        for position in (first, first + plan.batch_size - 1)
    )
    # A batch in groups 3 to 5 reads all three; if the worker's last batch ended in group 3, only 4 and 5.
    group_before = first_group - 1
    group_before[:, workers:] = np.maximum(group_before[:, workers:], last_group[:, :-workers])
    groups_read = last_group - group_before
    return np.asarray(batches * groups_read / groups_read.mean())


def planned_bytes(workload: Workload, plan: Plan, rows: Rows) -> float:
    """Return the total bytes of the batches in `rows`, from the file sizes that the settings of their run describe."""
    by_file = bytes_by_file(workload.dataset, received=True)
    if len(by_file) == 1:
        return float(by_file[0]) * float(rows["samples"].sum())
    total = 0.0
    for epoch in np.unique(rows["epoch"]):
        in_epoch = rows[rows["epoch"] == epoch]
        batches = batch_bytes(plan, by_file, int(epoch), int(in_epoch["step"].max()))
        total += float(batches[in_epoch["rank"], in_epoch["step"] - 1].sum())
    return total


MAX_DRAWS = 16  # maximum number of samples per batch whose times are drawn; the sum of a larger batch is extrapolated


def preprocessing_seconds(workload: Workload, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """Return the seconds that a worker with its own core preprocesses each batch, of shape (ranks, steps)."""
    duration, batch_size = workload.reader.preprocess_time, workload.reader.batch_size
    if duration.type == "fixed":
        return np.full(shape, batch_size * duration.mean)
    drawn = min(batch_size, MAX_DRAWS)
    mean = mean_seconds(duration)
    sums = draw_seconds(duration, random, math.prod(shape) * drawn).reshape(*shape, drawn).sum(axis=-1)
    # The deviation of a sum grows with the square root of the number of samples.
    deviations = (sums - drawn * mean) * math.sqrt(batch_size / drawn)
    return np.asarray(np.maximum(batch_size * mean + deviations, 0.0))


def computation_seconds(job: TrainingJob, epoch: int, steps: int) -> Floats:
    """Return each step's nominal computation seconds, as the `sleep` accelerator draws them; shape (ranks, steps)."""
    duration = job.workload.train.computation_time
    if duration.type == "fixed":
        return np.full((job.ranks, steps), duration.mean)
    specs = map(job.accelerator_spec, range(job.ranks))
    return np.stack([draw_ns(duration, spec, epoch, steps) for spec in specs]) / 1e9
