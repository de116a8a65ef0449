"""The checks of `dlemu doctor` for training: dataset, ranks, and the emulator's ceiling."""

from __future__ import annotations

import os
from dataclasses import replace
from math import ceil

from datagen.errors import DlemuError
from dlemu.config import datagen_command
from dlemu.doctor.check_base import Check, Checks, Facts
from dlemu.jobs.training.plan import make_job, planned_dataset
from dlemu.jobs.training.preflight import check_host, dataset_for_verdict, gives_verdict, memory_needed, steps_per_epoch
from dlemu.jobs.training.trainer import measure_ceiling
from dlemu.metrics.demand import Demand
from dlemu.ranks import first_failure, run_ranks
from dlemu.ranks.failure import LATE
from dlemu.report.units import size
from dlemu.results.wording import at_scale, count

BUDGET_SECONDS = 40.0  # of the ceiling's ranks, start included; 18 ranks with 72 workers take seconds on two idle cores


def check_dataset(facts: Facts) -> Check:
    """Check that the dataset exists, and that a run on it can give a verdict."""
    workload, dataset = facts.workload, facts.dataset
    data, ranks = workload.dataset, workload.ranks
    files = data.num_files_train if dataset is None else dataset.train.num_files
    steps = steps_per_epoch(workload, ranks, files)
    suffices = gives_verdict(workload, steps)
    wanted_files = files if suffices else dataset_for_verdict(workload, ranks).num_files_train
    if dataset is None:
        command = datagen_command(replace(workload, dataset=replace(data, num_files_train=wanted_files)))
        observed = f"{data.data_folder} does not exist yet"
        return Check(level="warn", observed=observed, wanted=f"a dataset of {wanted_files:,} files", advice=command)
    observed = f"{files:,} training files, {size(dataset.total_bytes)} in {data.data_folder}"
    if not suffices:
        observed += f": {count(steps, 'step')} per epoch for {count(ranks, 'rank')}, too few for a verdict"
        return Check(level="warn", observed=observed, wanted=f"dataset.num_files_train={wanted_files}")
    if dataset.notes:
        return Check(level="warn", observed=f"{observed}; {'; '.join(dataset.notes)}")
    return Check(observed=observed)


def check_ranks(facts: Facts) -> Check | None:
    """Check that the ranks fit this host; None without a dataset."""
    if facts.usable_dataset is None:
        return None
    job = make_job(facts.workload, facts.workload.ranks, facts.usable_dataset)
    check_host(job, job.ranks)
    steps, memory_gib = job.train_plan.steps_per_epoch, memory_needed(job, job.ranks) / 2**30
    return Check(observed=f"{count(job.ranks, 'rank')}, {count(steps, 'step')} per epoch, {memory_gib:.1f} GiB")


def check_ceiling(facts: Facts) -> Check:
    """Check the ceiling: the AU that emulated accelerators reach on this host without storage."""
    workload = facts.workload
    if workload.metric.ceiling_seconds <= 0:
        return Check(level="skip", observed="not measured: metric.ceiling_seconds is 0")
    if facts.demand.mb_per_second is None:
        return Check(level="skip", observed="not measured: no computation is emulated")
    spec, step_samples = workload.dataset, workload.ranks * workload.reader.batch_size
    files = max(spec.num_files_train, ceil(step_samples / spec.num_samples_per_file))
    dataset = facts.usable_dataset or planned_dataset(replace(spec, num_files_train=files))
    job = make_job(workload, workload.ranks, dataset, folder=os.devnull)
    check_host(job, job.ranks)
    job.loader_class()  # called to import the loader's framework once, before the ranks are forked
    ends = run_ranks(
        job.ranks,
        lambda comm: measure_ceiling(job, comm),
        timeout_seconds=workload.timeout_seconds,
        most_seconds=BUDGET_SECONDS,
    )
    failure = first_failure(ends)
    if failure and failure.kind != LATE:
        raise DlemuError(failure.message)
    return judge_ceiling(facts.demand, workload.ranks, ends[0].result)


def judge_ceiling(demand: Demand, ranks: int, percent: float | None) -> Check:
    """Return the check of the ceiling `percent` against the AU's threshold; None: it was not measured in time."""
    accelerators = f"{ranks} x {demand.accelerator or 'accelerator'}{at_scale(demand.sample_divisor)}"
    fewer = "fewer ranks on this host, or " if ranks > 1 else ""
    if percent is None:
        return Check(
            level="warn",
            observed=f"unknown: {accelerators} did not complete two steps within {BUDGET_SECONDS:g} s on this host",
            wanted="an AU without storage",
            advice=f"try again when this host is less busy, or with {fewer}fewer reader.read_threads",
        )
    mb_per_second = (demand.mb_per_second or 0) * ranks
    observed = f"{percent:.2f} % AU for {accelerators} on this host without storage"
    observed += f"; they need {mb_per_second:,.1f} MB/s from the storage"
    wanted = f"{demand.au_threshold_percent:g} % or more"
    if percent < demand.au_threshold_percent:
        advice = f"{fewer}a host with more cores: otherwise a run gives no verdict on the storage"
        return Check(level="fail", observed=observed, wanted=wanted, advice=advice)
    return Check(level="ok", observed=observed, wanted=wanted)


CHECKS: Checks = {"dataset": check_dataset, "ranks fit": check_ranks, "ceiling": check_ceiling}
