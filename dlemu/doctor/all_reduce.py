"""Ranks can be forked, and an all-reduce between them is fast."""

from __future__ import annotations

import mmap
import struct
import time

from datagen.errors import DlemuError
from dlemu.comm import Comm, first_failure, run_ranks
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "all-reduce", 170
_RANKS, _TIMES, _SLOW_US = 4, 200, 5_000  # 5 ms: longer than cosmoflow's step on an h100
_LONGEST_SECONDS = 30.0  # normally the check takes far less than a second; this ends it where ranks hang


def check(facts: Facts) -> Check:
    shared = mmap.mmap(-1, 8)  # rank 0's result: the mean time in microseconds
    timeout_seconds = min(_LONGEST_SECONDS, facts.workload.timeout_seconds)
    ends = run_ranks(_RANKS, lambda comm: _measure(comm, shared), timeout_seconds=timeout_seconds)
    failure = first_failure(ends)
    if failure:
        raise DlemuError(failure.message)
    (us,) = struct.unpack("d", shared)
    observed = f"takes {_RANKS} ranks {us:.0f} us"
    if us > _SLOW_US:
        advice = "stop other programs"
        return Check(name=NAME, level="warn", observed=observed, wanted=f"below {_SLOW_US} us", advice=advice)
    return Check(name=NAME, level="ok", observed=observed)


def _measure(comm: Comm, shared: mmap.mmap) -> int:
    comm.all_reduce_max(0)
    started_ns = time.monotonic_ns()
    for number in range(_TIMES):
        comm.all_reduce_max(number)
    if comm.rank == 0:
        struct.pack_into("d", shared, 0, (time.monotonic_ns() - started_ns) / 1e3 / _TIMES)
    return 0
