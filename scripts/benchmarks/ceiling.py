"""ceiling: how busy the emulator alone keeps its accelerators, with null storage behind the pytorch loader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.bench import Bench
from benchmarks.figure import Figure, compare, ratio_at_least

CASES = ((1, 0.010, 0.99), (2, 0.010, 0.99), (1, 0.000375, 0.97))
"""Ranks, seconds of a step, and the share wanted. 0.375 ms is the step of DLRM on an accelerator of 2024."""


def measure(bench: Bench) -> Iterator[Figure]:
    """The ceiling that every run measures before it starts, beside accelerators that never wait."""
    rounds = bench.interleaved(3, *(partial(_ceiling, bench, ranks, seconds) for ranks, seconds, _ in CASES))
    for case, (ranks, seconds, wanted) in enumerate(CASES):
        what = f"ceiling, {ranks} rank{'s' if ranks > 1 else ''}, steps of {1000 * seconds:g} ms"
        pairs = [(ceilings[case], 100.0) for ceilings in rounds]
        yield compare(what, "%", pairs, "never waiting", ratio_at_least(wanted))


def _ceiling(bench: Bench, ranks: int, step_seconds: float) -> float:
    """Return the ceiling in percent of a run that ends after a few steps."""
    metrics = bench.train_undisturbed(
        *bench.laptop, f"ranks={ranks}", f"train.computation_time={step_seconds}", "train.total_training_steps=4"
    )
    ceiling: float = metrics["ceiling_au_percent"]
    return ceiling
