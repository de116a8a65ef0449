"""help, ceiling, au, start: the overhead of the emulator itself, with null storage or data in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, alone, compare, ratio_at_least, value_at_most
from benchmarks.live import seconds_to_first_step, wait_for_steps
from benchmarks.processes import Child, tree_cpu_seconds, tree_pss_bytes

RANKS = 18
STEP_SECONDS = 0.323
EPOCHS = 3
LONG_STEP_SECONDS = 4.0
"""A step long enough for a measurement in the middle of it."""
SETTLE_SECONDS, WATCH_SECONDS = 1.0, 2.5
"""At the start of a step, the workers read; then all processes sleep."""
CEILINGS = ((1, 0.010, 0.99), (2, 0.010, 0.99), (1, 0.000375, 0.97))
"""Ranks, seconds of a step, and lower bound. 0.375 ms is the step of DLRM on an accelerator of 2024."""
MEMORY_SAMPLES, MEMORY_INTERVAL_SECONDS = 3, 2.0
"""Samples of the memory of a running job."""


def measure_help(bench: Bench) -> Iterator[Figure]:
    """Compare the CPU time (user and system) of `dlemu --help` with that of an interpreter that does nothing."""
    pairs = bench.interleaved(
        5, lambda: bench.dlemu("--help").cpu_seconds, lambda: bench.python("-c", "pass").cpu_seconds
    )
    yield compare("CPU of dlemu --help", "s", pairs, "python -c pass", value_at_most(0.3))


def measure_ceiling(bench: Bench) -> Iterator[Figure]:
    """Compare the ceiling that every run measures before it starts with accelerators that never wait."""
    rounds = bench.interleaved(3, *(partial(_ceiling, bench, ranks, seconds) for ranks, seconds, _ in CEILINGS))
    for case, (ranks, seconds, wanted) in enumerate(CEILINGS):
        what = f"ceiling, {ranks} rank{'s' if ranks > 1 else ''}, steps of {1000 * seconds:g} ms"
        pairs = [(ceilings[case], 100.0) for ceilings in rounds]
        yield compare(what, "%", pairs, "never waiting", ratio_at_least(wanted))


def _ceiling(bench: Bench, ranks: int, step_seconds: float) -> float:
    """Return the ceiling of a run of a few steps, in percent."""
    case = (f"ranks={ranks}", f"train.computation_time={step_seconds}", "train.total_training_steps=4")
    return float(bench.train_undisturbed(*bench.laptop, *case)["ceiling_au_percent"])


def measure_au(bench: Bench) -> Iterator[Figure]:
    """Measure the AU of many ranks that read from the page cache, which should be 100 %; and the idle CPU time."""
    rounds = bench.interleaved(3, partial(_train, bench, synchronous=False), partial(_train, bench, synchronous=True))
    for what, wanted, values in (
        (
            "au, least of epochs from the second on",
            0.995,
            [min(own["au_percent"]["per_epoch"][1:]) for own, _ in rounds],
        ),
        ("au_rules, whole run", 0.96, [own["au_whole_percent"]["mean"] for own, _ in rounds]),
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
    """Return the CPU use of the whole run during the middle of its third step."""
    with bench.training(*_settings(bench, LONG_STEP_SECONDS), "train.total_training_steps=4") as (child, folder):
        wait_for_steps(child, folder, RANKS, 2)
        time.sleep(SETTLE_SECONDS)
        processes = child.tree()
        before, start = tree_cpu_seconds(processes), time.monotonic()
        time.sleep(WATCH_SECONDS)
        used = tree_cpu_seconds(processes) - before
        return 100 * used / (time.monotonic() - start)


def measure_start(bench: Bench) -> Iterator[Figure]:
    """Measure the time from the command to the first step, compared with an import of the framework; and memory."""
    starts, memory = [], []
    for _ in range(bench.rounds(3)):
        with bench.training(*bench.laptop, f"ranks={RANKS}") as (child, folder):
            seconds = seconds_to_first_step(child, folder, RANKS)
            memory.append(_max_mb(child) / RANKS)
        starts.append((seconds, bench.python("-c", "import torch").wall_seconds))
    what = f"start, {RANKS} ranks to their first step"
    yield compare(what, "s", starts, "python -c 'import torch'", value_at_most(6))
    yield alone("memory (PSS) of a rank with its workers", "MB", memory, value_at_most(150))


def _max_mb(child: Child) -> float:
    max_bytes = 0
    for _ in range(MEMORY_SAMPLES):
        time.sleep(MEMORY_INTERVAL_SECONDS)
        max_bytes = max(max_bytes, tree_pss_bytes(child.tree()))
    return max_bytes / MB
