"""Checks that samples, memory and file descriptors suffice for the ranks with the dataset that exists."""

from __future__ import annotations

from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training.plan import make_job
from dlemu.jobs.training.preflight import check_host, memory_needed
from dlemu.results.wording import count

ORDER = 280


def check(facts: Facts) -> Check | None:
    if facts.usable_dataset is None:
        return None
    job = make_job(facts.workload, facts.workload.ranks, facts.usable_dataset, folder="", started_at="")
    check_host(job, job.ranks)
    steps, memory_gib = job.train_plan.steps_per_epoch, memory_needed(job, job.ranks) / 2**30
    observed = f"{count(job.ranks, 'rank')}, {count(steps, 'step')} per epoch, {memory_gib:.1f} GiB"
    return Check(level="ok", observed=observed)


CHECKS = {"ranks fit": check}
