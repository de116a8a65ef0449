"""Checks of the host's cores, memory, shared memory and GPUs, and of how promptly processes wake and reduce."""

from __future__ import annotations

import contextlib
import math
import os
import time

import psutil

from datagen.errors import DlemuError
from dlemu.comm import Comm, first_failure, run_ranks
from dlemu.comm.clock import MonotonicClock
from dlemu.comm.mpi import stale_shared_memory
from dlemu.doctor.check_base import Check, Facts
from dlemu.results.wording import count

ORDER = 100
_RANKS_PER_CORE = 12
"""More ranks than this on a core have not been tried with full-size workloads; the result's ceiling shows the cost."""
_WATCHED_SECONDS, _BUSY_PERCENT = 0.5, 25.0  # bursts average out; 25 %: as predictions' BUSY_SHARE
_LEAST_BYTES = 16 << 20  # far more than semaphores take; containers have 64 MiB by Docker's default
_SLEEP_NS, _TRIED_SECONDS, _LATE_US = 1_000_000, 0.3, 2_000  # 2 ms: most of cosmoflow's step on an h100
_RANKS, _TIMES, _SLOW_US = 4, 200, 5_000  # 5 ms: longer than cosmoflow's step on an h100
_LONGEST_SECONDS = 30.0  # normally the check takes far less than a second; this ends it where ranks hang
_DRIVER = "/proc/driver/nvidia/gpus"


def check_cores(facts: Facts) -> Check:
    """There are cores enough for the ranks: by affinity, and by the CPU limit of the control group."""
    cores, workload = facts.cores, facts.workload
    closed = cores.usable < cores.count
    bound = f" of {cores.count} (this process may not use the others: affinity)" if closed else ""
    usable = min(float(cores.usable), cores.limit or math.inf)
    if usable < cores.usable:
        bound += f", with a CPU limit of {usable:.1f} cores (of this container or job: cgroup)"
    readers = f"{count(workload.ranks, 'rank')} x {count(workload.reader.read_threads, 'worker')}"
    observed = f"{cores.usable} usable{bound} for {readers}"
    if workload.ranks > usable * _RANKS_PER_CORE:
        advice = "check the ceiling in the result (AU without storage), or use fewer ranks on this host"
        wanted = f"{count(-(-workload.ranks // _RANKS_PER_CORE), 'core')} or more"
        return Check(level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(level="ok", observed=observed)


def check_free_cores(facts: Facts) -> Check:
    """Other programs leave the cores to the run: watched for half a second."""
    return judge_free_cores(psutil.cpu_percent(_WATCHED_SECONDS), facts.cores.count)


def judge_free_cores(busy_percent: float, cores: int) -> Check:
    observed = f"{cores * busy_percent / 100:.1f} of {cores} cores in use by other programs"
    if busy_percent > _BUSY_PERCENT:
        advice = "stop other programs (top): they take cores from the workers that read"
        wanted = f"{cores * _BUSY_PERCENT / 100:.1f} at most"
        return Check(level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(level="ok", observed=observed)


def check_memory(facts: Facts) -> Check:
    """The memory that is available; whether it is enough for the run is another check's (`ranks fit`)."""
    memory = facts.memory
    observed = f"{memory.available_bytes / 2**30:.1f} GiB available of {memory.total_bytes / 2**30:.1f} GiB"
    if memory.limit_bytes is not None:
        observed += " that a control group allows"
    return Check(level="ok", observed=observed)


def check_shared_memory(facts: Facts) -> Check:
    """/dev/shm has free space: PyTorch keeps semaphores and small segments there."""
    return look_at_shared_memory("/dev/shm")


def look_at_shared_memory(folder: str) -> Check:
    wanted, advice = f"{_LEAST_BYTES >> 20} MiB free", "free some, or start the container with a larger --shm-size"
    try:
        free = psutil.disk_usage(folder).free
    except OSError as error:
        observed, advice = f"{folder}: {error.strerror}", f"mount a tmpfs at {folder}"
        return Check(level="fail", observed=observed, wanted=wanted, advice=advice)
    observed = f"{free >> 20} MiB free in {folder}"
    if stale := stale_shared_memory(folder):
        observed += f"; MPI processes of yours that were killed left {', '.join(stale)}"
        advice = "remove them if no MPI program of yours runs in a container; `mpirun dlemu` outside of one does it"
        return Check(level="warn", observed=observed, wanted="none left", advice=advice)
    if free < _LEAST_BYTES:
        return Check(level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(level="ok", observed=observed)


def check_sleep(facts: Facts) -> Check:
    """Sleeps end on time. A late one costs the accelerators nothing unless it makes the next batch late."""
    return judge_sleep(oversleeps_us())


def oversleeps_us() -> list[float]:
    """Return how much too long sleeps of 1 ms are, in microseconds, sorted; takes 0.3 s."""
    clock = MonotonicClock()
    end, late = time.monotonic() + _TRIED_SECONDS, []
    while time.monotonic() < end:
        deadline_ns = clock.now_ns() + _SLEEP_NS
        clock.sleep_until(deadline_ns)
        late.append((clock.now_ns() - deadline_ns) / 1e3)
    return sorted(late)


def judge_sleep(late_us: list[float]) -> Check:
    """Look at the median of sorted latenesses."""
    median, high = late_us[len(late_us) // 2], late_us[min(len(late_us) - 1, len(late_us) * 99 // 100)]
    observed = f"1 ms sleeps end {median:.0f} us late (p99 {high:.0f} us)"
    if median > _LATE_US:
        advice = "stop other programs; workloads with steps of a few milliseconds will suffer"
        return Check(level="warn", observed=observed, wanted=f"below {_LATE_US} us", advice=advice)
    return Check(level="ok", observed=observed)


def check_all_reduce(facts: Facts) -> Check:
    """Ranks can be forked, and an all-reduce between them is fast."""
    timeout_seconds = min(_LONGEST_SECONDS, facts.workload.timeout_seconds)
    ends = run_ranks(_RANKS, _mean_us, timeout_seconds=timeout_seconds)
    failure = first_failure(ends)
    if failure:
        raise DlemuError(failure.message)
    us = float(ends[0].result)
    observed = f"takes {_RANKS} ranks {us:.0f} us"
    if us > _SLOW_US:
        advice = "stop other programs"
        return Check(level="warn", observed=observed, wanted=f"below {_SLOW_US} us", advice=advice)
    return Check(level="ok", observed=observed)


def _mean_us(comm: Comm) -> float:
    """Return how long an all-reduce takes on average, in microseconds."""
    comm.all_reduce_max(0)
    started_ns = time.monotonic_ns()
    for number in range(_TIMES):
        comm.all_reduce_max(number)
    return (time.monotonic_ns() - started_ns) / 1e3 / _TIMES


def check_gpus(facts: Facts) -> Check:
    """The GPUs of this host: only pinned memory needs one."""
    return judge_gpus(models(), facts.workload.reader.pin_memory)


def models(folder: str = _DRIVER) -> list[str]:
    """Return the models of this host's NVIDIA GPUs, as their driver names them."""
    gpus = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name, "information")) as lines:
                gpus += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return gpus


def judge_gpus(gpus: list[str], pin_memory: bool) -> Check:
    observed = f"{len(gpus)} x {gpus[0]}" if gpus else "none; the accelerators are emulated"
    if pin_memory and not gpus:
        advice = "reader.pin_memory=false"
        return Check(level="fail", observed="none", wanted="reader.pin_memory=true", advice=advice)
    return Check(level="ok", observed=observed)


CHECKS = {
    "cores": check_cores,
    "free cores": check_free_cores,
    "memory": check_memory,
    "shared memory": check_shared_memory,
    "sleep": check_sleep,
    "all-reduce": check_all_reduce,
    "GPU": check_gpus,
}
