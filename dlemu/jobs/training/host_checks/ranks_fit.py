"""The ranks have samples, memory and file descriptors enough with the dataset that is there."""

from __future__ import annotations

from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training.plan import make_job
from dlemu.jobs.training.preflight import check_host, memory_wanted
from dlemu.results.wording import count

NAME, ORDER = "ranks fit", 280


def check(facts: Facts) -> Check | None:
    if facts.usable_dataset is None:
        return None
    job = make_job(facts.workload, facts.workload.ranks, facts.usable_dataset, folder="", started_at="")
    check_host(job, job.ranks)
    steps, wanted = job.train_plan.steps_per_epoch, memory_wanted(job, job.ranks) / 2**30
    fit = f"{count(job.ranks, 'rank')}, {count(steps, 'step')} per epoch, {wanted:.1f} GiB"
    return Check(name=NAME, level="ok", observed=fit)
