"""Checks of the host's cores and shared memory."""

from __future__ import annotations

import math
import os

import psutil

from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Check, Checks, Facts, judged
from dlemu.machine.cgroup_limits import cpu_limit, shared_memory_problem
from dlemu.ranks.mpi import stale_shared_memory
from dlemu.results.wording import count

_RANKS_PER_CORE = 12  # more have not been tried with full-size workloads; the result's ceiling shows their cost
_WATCHED_SECONDS, _BUSY_PERCENT = 0.5, 25.0  # bursts average out; 25 %: as predictions' BUSY_SHARE


def check_cores(facts: Facts) -> Check:
    """There are cores enough for the ranks: by affinity, and by the CPU limit of the control group."""
    return judge_cores(facts.workload, os.cpu_count() or 1, len(os.sched_getaffinity(0)), cpu_limit())


def judge_cores(workload: Workload, cores: int, usable: int, limit: float | None = None) -> Check:
    observed = f"{usable} usable"
    if usable < cores:
        observed += f" of {cores} (this process may not use the others: affinity)"
    cpu_cores = min(float(usable), limit or math.inf)
    if cpu_cores < usable:
        observed += f", with a CPU limit of {cpu_cores:.1f} cores (of this container or job: cgroup)"
    observed += f" for {count(workload.ranks, 'rank')} x {count(workload.reader.read_threads, 'worker')}"
    wanted = f"{count(math.ceil(workload.ranks / _RANKS_PER_CORE), 'core')} or more"
    advice = "check the ceiling in the result (AU without storage), or use fewer ranks on this host"
    return judged(workload.ranks > cpu_cores * _RANKS_PER_CORE, observed, wanted, advice)


def check_free_cores(facts: Facts) -> Check:
    """Other programs leave the cores to the run: watched for half a second."""
    return judge_free_cores(psutil.cpu_percent(_WATCHED_SECONDS), os.cpu_count() or 1)


def judge_free_cores(busy_percent: float, cores: int) -> Check:
    observed = f"{cores * busy_percent / 100:.1f} of {cores} cores in use by other programs"
    advice = "stop other programs (top): they take cores from the workers that read"
    return judged(busy_percent > _BUSY_PERCENT, observed, f"{cores * _BUSY_PERCENT / 100:.1f} at most", advice)


def check_shared_memory(facts: Facts, folder: str = "/dev/shm") -> Check:
    """There is free space where MPI libraries and PyTorch keep semaphores and small segments."""
    if stale := stale_shared_memory(folder):
        observed = f"MPI processes of yours that were killed left {', '.join(stale)}"
        advice = "remove them if no MPI program of yours runs in a container; `mpirun dlemu` outside of one does it"
        return Check(level="warn", observed=observed, wanted="none left", advice=advice)
    if problem := shared_memory_problem(folder):
        return Check(level="fail", observed=problem)
    return Check(observed=f"{folder} has room")


CHECKS: Checks = {
    "cores": check_cores,
    "free cores": check_free_cores,
    "shared memory": check_shared_memory,
}
