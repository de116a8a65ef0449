"""The memory that is available; whether it is enough for the run is another check's (`ranks fit`)."""

from __future__ import annotations

from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "memory", 130


def check(facts: Facts) -> Check:
    memory = facts.memory
    observed = f"{memory.available_bytes / 2**30:.1f} GiB available of {memory.total_bytes / 2**30:.1f} GiB"
    if memory.limit_bytes is not None:
        observed += " that a control group allows"
    return Check(name=NAME, level="ok", observed=observed)
