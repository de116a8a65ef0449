"""start: from a cold command to the first step of 18 ranks, and the memory that they and their workers hold."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figure import Figure, alone, compare, value_at_most
from benchmarks.live import seconds_to_first_step
from benchmarks.processes import Child, tree_pss_bytes

RANKS = 18
LOOKS = 3
LOOK_EVERY_SECONDS = 2.0


def measure(bench: Bench) -> Iterator[Figure]:
    """A run with the default settings, its ceiling measurement included, beside an import of the framework alone."""
    starts, memory = [], []
    for _ in range(bench.rounds(3)):
        seconds, mb_per_rank = _start(bench)
        starts.append((seconds, bench.python("-c", "import torch").wall_seconds))
        memory.append(mb_per_rank)
    yield compare(
        f"start, {RANKS} ranks to their first step", "s", starts, "python -c 'import torch'", value_at_most(6)
    )
    yield alone("memory (PSS) of a rank with its workers", "MB", memory, value_at_most(150))


def _start(bench: Bench) -> tuple[float, float]:
    """Return seconds from the command to the last rank's first step, and the most MB that a rank held after that."""
    with bench.training(*bench.laptop, f"ranks={RANKS}") as (child, folder):
        return seconds_to_first_step(child, folder, RANKS), _most_mb(child) / RANKS


def _most_mb(child: Child) -> float:
    most = 0
    for _ in range(LOOKS):
        time.sleep(LOOK_EVERY_SECONDS)
        most = max(most, tree_pss_bytes(child.tree()))
    return most / 1e6
