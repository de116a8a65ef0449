"""Measures the emulator's ceiling without storage, in `metric.ceiling_seconds`, and at most BUDGET_SECONDS."""

from __future__ import annotations

import os
from dataclasses import replace

from datagen.errors import DlemuError
from datagen.registry import find
from dlemu.comm import first_failure, run_ranks
from dlemu.comm.failure import LATE
from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training.plan import TrainingJob, make_job, planned_dataset
from dlemu.jobs.training.preflight import check_host
from dlemu.jobs.training.trainer import measure_ceiling
from dlemu.loaders.loader_base import Loader
from dlemu.metrics.demand import Demand
from dlemu.results.wording import scaled

ORDER = 310
BUDGET_SECONDS = 40.0
"""Time limit for ranks, start included; 18 ranks with 72 workers need a few seconds on two otherwise idle cores."""


def check(facts: Facts) -> Check:
    workload = facts.workload
    if workload.metric.ceiling_seconds <= 0:
        return Check(level="skip", observed="not measured: metric.ceiling_seconds is 0")
    if facts.demand.mb_per_second is None:
        return Check(level="skip", observed="not measured: no computation is emulated")
    spec, batch = workload.dataset, workload.reader.batch_size
    files = max(spec.num_files_train, -(-workload.ranks * batch // spec.num_samples_per_file))  # a step of every rank
    dataset = facts.usable_dataset or planned_dataset(replace(spec, num_files_train=files))
    job = make_job(workload, workload.ranks, dataset, folder=os.devnull, started_at="")
    check_host(job, job.ranks)
    loader = find("dlemu.loaders", workload.reader.data_loader, "Loader")
    return judge(facts.demand, workload.ranks, _ceiling_percent(job, loader))


def judge(demand: Demand, ranks: int, percent: float | None) -> Check:
    """Compare the ceiling, in percent of AU, with the threshold; None: not measured in time."""
    what = f"{ranks} x {demand.accelerator or 'accelerator'}{scaled(demand.sample_divisor)}"
    fewer = "fewer ranks on this host, or " if ranks > 1 else ""
    if percent is None:
        return Check(
            level="warn",
            observed=f"unknown: {what} did not complete two steps within {BUDGET_SECONDS:g} s on this host",
            wanted="an AU without storage",
            advice=f"try again when this host is less busy, or with {fewer}fewer reader.read_threads",
        )
    mb_per_second = (demand.mb_per_second or 0) * ranks
    observed = f"{percent:.2f} % AU for {what} on this host without storage"
    observed += f"; they need {mb_per_second:,.1f} MB/s from the storage"
    wanted = f"{demand.au_threshold_percent:g} % or more"
    if percent < demand.au_threshold_percent:
        advice = f"{fewer}a host with more cores: otherwise a run gives no verdict on the storage"
        return Check(level="fail", observed=observed, wanted=wanted, advice=advice)
    return Check(level="ok", observed=observed, wanted=wanted)


def _ceiling_percent(job: TrainingJob, make_loader: type[Loader]) -> float | None:
    """Fork the ranks and return their ceiling; None after BUDGET_SECONDS. Raises DlemuError when a rank fails."""
    ends = run_ranks(
        job.ranks,
        lambda comm: measure_ceiling(job, comm, make_loader),
        timeout_seconds=job.workload.timeout_seconds,
        most_seconds=BUDGET_SECONDS,
    )
    failure = first_failure(ends)
    if failure and failure.kind != LATE:
        raise DlemuError(failure.message)
    percent: float | None = ends[0].result
    return percent


CHECKS = {"ceiling": check}
