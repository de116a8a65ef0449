"""barrier: the time of an all-reduce on one host, and how it grows from 2 to 256 ranks.

`python -m benchmarks.barrier RANKS` prints the median time of an all-reduce, us.
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
_WARM_UP, _REPETITIONS = 20, 200
_TIMEOUT_SECONDS = 300


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure repeated all-reduces of idle ranks."""
    counts = QUICK_RANKS if bench.quick else RANKS
    rounds = [[all_reduce_us(ranks) for ranks in counts] for _ in range(bench.rounds(3))]
    for index in (0, len(counts) - 1):
        medians_us = [times[index][0] for times in rounds]
        yield alone(f"all-reduce of {counts[index]} ranks, median", "us", medians_us, value_at_most(50_000))
    cores = len(os.sched_getaffinity(0))
    for what, column in (("all-reduce, for each rank more", 0), ("its CPU, for each rank more", 1)):
        slopes = [float(np.polyfit(counts, [time_us[column] for time_us in times], 1)[0]) for times in rounds]
        yield alone(f"{what} ({cores} cores)", "us", slopes, value_at_most(200))


def all_reduce_us(ranks: int) -> tuple[float, float]:
    """Return the median time of an all-reduce, and its mean CPU time on all ranks together, us."""
    ends = run_ranks(ranks, _all_reduce, timeout_seconds=_TIMEOUT_SECONDS)
    if any(end.failure for end in ends):
        raise DlemuError(f"{ranks} ranks did not meet: {next(end.failure for end in ends if end.failure)}")
    median_us, cpu_us = ends[0].result
    return median_us, cpu_us


def _all_reduce(comm: Comm) -> tuple[float, float] | None:
    for _ in range(_WARM_UP):
        comm.all_reduce_max(0)
    cpu_before_ns, times_us = time.process_time_ns(), []
    for _ in range(_REPETITIONS):
        start_ns = time.perf_counter_ns()
        comm.all_reduce_max(start_ns)
        times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    cpu_us = comm.gather((time.process_time_ns() - cpu_before_ns) / 1e3)
    return None if cpu_us is None else (statistics.median(times_us), sum(cpu_us) / _REPETITIONS)


if __name__ == "__main__":
    print(all_reduce_us(int(sys.argv[1]))[0])
