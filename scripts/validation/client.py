"""The client's CPU: it must not change an AU that storage limits, and a busy host must never raise the AU."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator

from benchmarks.processes import running

from validation.bandwidth import Case
from validation.bed import Bed
from validation.check import Check

CASES = (Case(ratio=1.25), Case(ratio=2))
ROUNDS = 3
"""Runs of each kind, in turn: on the kernel's throttle, two equal runs differed by up to 1.3 points."""
NOISE = 0.5
"""Points by which two medians of equal runs may differ."""


def measure(bed: Bed) -> Iterator[Check]:
    """Compare each case with all cores, on one core, and beside CPU hogs on all cores: medians of several runs."""
    for case in CASES:
        free, one_core, beside = map(statistics.median, zip(*(_round(case, bed) for _ in range(ROUNDS)), strict=True))
        cores = len(os.sched_getaffinity(0))
        yield Check(case.name, f"au on 1 core / on {cores}", free, one_core, "%", within=1)
        yield Check(case.name, "au beside CPU hogs / alone", free, beside, "%", within=NOISE, at_most=True)


def _round(case: Case, bed: Bed) -> tuple[float, float, float]:
    """Return the AU with all cores, on one core, and beside CPU hogs."""
    free = case.run(bed).au_percent
    one_core = case.run(bed, "taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))).au_percent
    with hogs():
        return free, one_core, case.run(bed).au_percent


@contextlib.contextmanager
def hogs() -> Iterator[None]:
    """Keep every core busy as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            stack.enter_context(running(["sh", "-c", "while :; do :; done"]))
        yield
