"""This version of dlemu can run the workload with these settings."""

from __future__ import annotations

from dlemu.config import check_runnable
from dlemu.doctor.check_base import Check, Facts
from dlemu.results.wording import count

NAME, ORDER = "configuration", 30


def check(facts: Facts) -> Check:
    workload = facts.workload
    check_runnable(workload)
    if workload.notes:
        return Check(name=NAME, level="warn", observed="; ".join(workload.notes))
    return Check(name=NAME, level="ok", observed=f"workload {workload.model.name}, {count(workload.ranks, 'rank')}")
