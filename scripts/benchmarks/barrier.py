"""barrier: what an all-reduce of the ranks of one host takes, from 2 ranks to 256, as a slope.

`python -m benchmarks.barrier RANKS` prints the median microseconds of one.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.bench import Bench
from benchmarks.figure import Figure, alone, value_at_most
from datagen.errors import DlemuError
from dlemu.ranks import Comm
from dlemu.ranks.launch import run_ranks

RANKS = (2, 8, 32, 64, 128, 256)
QUICK_RANKS = (2, 8)
_WARM_UP, _MEETINGS = 20, 200
_TIMEOUT_SECONDS = 300


def measure(bench: Bench) -> Iterator[Figure]:
    """All ranks meet again and again with nothing to do between."""
    counts = QUICK_RANKS if bench.quick else RANKS
    rounds = [[meeting(ranks) for ranks in counts] for _ in range(bench.rounds(3))]
    for place in (0, len(counts) - 1):
        microseconds = [taken[place][0] for taken in rounds]
        yield alone(f"all-reduce of {counts[place]} ranks, median", "us", microseconds, value_at_most(50_000))
    cores = len(os.sched_getaffinity(0))
    for what, column in (("all-reduce, for each rank more", 0), ("its CPU, for each rank more", 1)):
        slopes = [float(np.polyfit(counts, [taken[column] for taken in one], 1)[0]) for one in rounds]
        yield alone(f"{what} ({cores} cores)", "us", slopes, value_at_most(200))


def meeting(ranks: int) -> tuple[float, float]:
    """Return the median microseconds of an all-reduce, and the CPU of all ranks together for one."""
    ends = run_ranks(ranks, _meet, timeout_seconds=_TIMEOUT_SECONDS)
    if any(end.failure for end in ends):
        raise DlemuError(f"{ranks} ranks did not meet: {next(end.failure for end in ends if end.failure)}")
    taken, cpu = ends[0].result
    return taken, cpu


def _meet(comm: Comm) -> tuple[float, float] | None:
    for _ in range(_WARM_UP):
        comm.all_reduce_max(0)
    began, taken = time.process_time_ns(), []
    for _ in range(_MEETINGS):
        start_ns = time.perf_counter_ns()
        comm.all_reduce_max(start_ns)
        taken.append((time.perf_counter_ns() - start_ns) / 1e3)
    used = comm.gather((time.process_time_ns() - began) / 1e3)
    return None if used is None else (statistics.median(taken), sum(used) / _MEETINGS)


if __name__ == "__main__":
    print(meeting(int(sys.argv[1]))[0])
