"""The client's CPU: it must not move an AU that storage limits, and a busy host must never raise one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from benchmarks.processes import running

from validation.bandwidth import Case
from validation.bed import Bed
from validation.check import Check

CASES = (Case(ratio=1.25), Case(ratio=2))
NOISE = 0.5
"""Points by which two runs of the same may differ."""


def measure(bed: Bed) -> Iterator[Check]:
    """Each case with all cores, on one core, and beside a program that burns every core."""
    for case in CASES:
        free = case.run(bed).au_percent
        one_core = case.run(bed, "taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))).au_percent
        with hogs():
            beside = case.run(bed).au_percent
        cores = len(os.sched_getaffinity(0))
        yield Check(
            case=case.name, what=f"au on 1 core / on {cores}", theory=free, measured=one_core, unit="%", within=1
        )
        yield Check(
            case=case.name,
            what="au beside CPU hogs / alone",
            theory=free,
            measured=beside,
            unit="%",
            within=NOISE,
            at_most=True,
        )


@contextlib.contextmanager
def hogs() -> Iterator[None]:
    """Burn every core as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            stack.enter_context(running(["sh", "-c", "while :; do :; done"]))
        yield
