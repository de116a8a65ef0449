"""This version can train with the configuration."""

from __future__ import annotations

from datagen.words import count
from dlemu.config import check_runnable
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "configuration", 30


def check(facts: Facts) -> Check:
    workload = facts.workload
    check_runnable(workload)
    if workload.notes:
        return Check(name=NAME, level="warn", observed="; ".join(workload.notes))
    return Check(name=NAME, level="ok", observed=f"workload {workload.model.name}, {count(workload.ranks, 'rank')}")
