"""au: how much utilisation the emulator itself loses when 18 ranks with 4 workers each read from the page cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figure import Figure, alone, compare, ratio_at_least, value_at_most
from benchmarks.live import wait_for_steps
from benchmarks.processes import tree_cpu_seconds

RANKS = 18
STEP_SECONDS = 0.323
EPOCHS = 3
LONG_STEP_SECONDS = 4.0
"""A step long enough to look at the middle of it."""
SETTLE_SECONDS, WATCH_SECONDS = 1.0, 2.5
"""The workers refill at the start of a step; what follows is sleep."""


def measure(bench: Bench) -> Iterator[Figure]:
    """All ranks on this host; storage is the page cache, so that the truth is 100 %."""
    rounds = bench.interleaved(3, partial(_train, bench, synchronous=False), partial(_train, bench, synchronous=True))
    for what, wanted, values in (
        (
            "au, least of epochs from the second on",
            0.995,
            [min(own["au_percent"]["per_epoch"][1:]) for own, _ in rounds],
        ),
        ("au_rules, whole run", 0.96, [own["au_rules_percent"]["mean"] for own, _ in rounds]),
        ("au, train.synchronous=true", 0.97, [synchronous["au_percent"]["mean"] for _, synchronous in rounds]),
    ):
        yield compare(what, "%", [(value, 100.0) for value in values], "never waiting", ratio_at_least(wanted))
    idle = [_percent_of_a_core(bench) for _ in range(bench.rounds(3))]
    yield alone("CPU of the run while all ranks compute", "% of a core", idle, value_at_most(10))


def _settings(bench: Bench, step_seconds: float) -> tuple[str, ...]:
    return (*bench.laptop, f"ranks={RANKS}", f"train.computation_time={step_seconds}", "metric.ceiling_seconds=0")


def _train(bench: Bench, *, synchronous: bool) -> dict[str, Any]:
    """Return the metrics of a run."""
    settings = _settings(bench, STEP_SECONDS)
    return bench.train_undisturbed(*settings, f"train.epochs={EPOCHS}", f"train.synchronous={str(synchronous).lower()}")


def _percent_of_a_core(bench: Bench) -> float:
    """Return what the whole run uses between two moments in the middle of its third step."""
    with bench.training(*_settings(bench, LONG_STEP_SECONDS), "train.total_training_steps=4") as (child, folder):
        wait_for_steps(child, folder, RANKS, 2)
        time.sleep(SETTLE_SECONDS)
        processes = child.tree()
        before, begun = tree_cpu_seconds(processes), time.monotonic()
        time.sleep(WATCH_SECONDS)
        used = tree_cpu_seconds(processes) - before
        return 100 * used / (time.monotonic() - begun)
