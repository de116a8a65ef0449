"""Checks of the host: cores, memory, limits, and how promptly it sleeps and lets ranks meet."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import resource
import struct
import time
from collections.abc import Iterator

import psutil

from datagen.errors import DlemuError
from dlemu.cli.checks import Check, Level
from dlemu.comm import Comm, first_failure, run_ranks
from dlemu.config.schema import Workload
from dlemu.emulator.clock import MonotonicClock
from dlemu.emulator.cpu_limit import cpu_limit
from dlemu.emulator.preflight import files_wanted

_RANKS_PER_CORE = 12
"""More ranks than this on a core have not been tried with full-size workloads; the ceiling tells what they cost."""
_FEW_FILES = 1024
_SHM_BYTES = 16 << 20
"""PyTorch keeps semaphores and small segments there; dlemu's batches lie in memfds, which count as memory."""
_SLEEP_NS, _SLEEPING_SECONDS, _LATE_US = 1_000_000, 0.3, 2_000
_WATCHING_SECONDS, _BUSY_PERCENT = 0.5, 25.0
_GPUS = "/proc/driver/nvidia/gpus"
_MEETING_RANKS, _MEETINGS, _SLOW_MEETING_US = 4, 200, 5_000


def checks(workload: Workload) -> Iterator[Check]:
    """Look at the host."""
    yield check_cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, workload, limit=cpu_limit())
    yield check_free_cores(psutil.cpu_percent(_WATCHING_SECONDS), os.cpu_count() or 1)
    yield check_memory()
    yield check_open_files(
        *resource.getrlimit(resource.RLIMIT_NOFILE), wanted=files_wanted(workload.reader.read_threads)
    )
    yield check_shared_memory()
    yield check_sleep(oversleeps_us())
    yield check_meeting(workload.timeout_seconds)
    yield check_gpus(gpus(), workload.reader.pin_memory)


def check_cores(usable: int, there: int, workload: Workload, limit: float | None = None) -> Check:
    """Look at the cores that this process may use, and at how much of their time (`limit`, in cores)."""
    bound = f" of {there} (the others are closed to this process: affinity)" if usable < there else ""
    cores = min(float(usable), limit or math.inf)
    if cores < usable:
        bound += f", but no more than the time of {cores:.1f} (the CPU limit of this container or job: cgroup)"
    seen = f"{usable} usable{bound} for {workload.ranks} ranks x {workload.reader.read_threads} workers"
    if workload.ranks > cores * _RANKS_PER_CORE:
        advice = "watch the emulator's ceiling in the result, or use fewer ranks on this host"
        wanted = f"{-(-workload.ranks // _RANKS_PER_CORE)} cores or more"
        return Check(name="cores", level="warn", seen=seen, wanted=wanted, advice=advice)
    return Check(name="cores", level="ok", seen=seen)


def check_free_cores(busy_percent: float, cores: int) -> Check:
    """Look at what other programs leave of the cores, for half a second."""
    seen = f"{cores * busy_percent / 100:.1f} of {cores} cores in use by other programs"
    if busy_percent > _BUSY_PERCENT:
        advice = "stop what else is running (top): it takes cores from the workers that read"
        wanted = f"{cores * _BUSY_PERCENT / 100:.1f} at most"
        return Check(name="free cores", level="warn", seen=seen, wanted=wanted, advice=advice)
    return Check(name="free cores", level="ok", seen=seen)


def gpus(folder: str = _GPUS) -> list[str]:
    """Return the models of this host's NVIDIA GPUs, as the driver tells them."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name, "information")) as lines:
                found += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return found


def check_gpus(models: list[str], wanted: bool) -> Check:
    """Look at the GPUs: none is needed but for pinned memory."""
    seen = f"{len(models)} x {models[0]}" if models else "none; the accelerators are emulated"
    if wanted and not models:
        advice = "reader.pin_memory=false"
        return Check(name="GPU", level="fail", seen="none", wanted="reader.pin_memory=true", advice=advice)
    return Check(name="GPU", level="ok", seen=seen)


def check_memory() -> Check:
    """Look at the memory; what a run wants of it is told with its dataset."""
    memory = psutil.virtual_memory()
    return Check(name="memory", level="ok", seen=f"{_gib(memory.available)} GiB available of {_gib(memory.total)} GiB")


def check_open_files(soft: int, hard: int, wanted: int = 0) -> Check:
    """Look at the limit of open files of a process."""
    seen = f"{_limit(soft)}, can be raised to {_limit(hard)}"
    few = max(_FEW_FILES, wanted)
    if 0 <= hard < few:
        advice = f"raise it in /etc/security/limits.conf, or start from a shell with `ulimit -n {few}`"
        level: Level = "fail" if hard < wanted else "warn"
        return Check(name="open files", level=level, seen=seen, wanted=f"{few} or more", advice=advice)
    return Check(name="open files", level="ok", seen=seen)


def check_shared_memory(folder: str = "/dev/shm") -> Check:
    """Look at the shared memory that frameworks put their semaphores in."""
    wanted, advice = f"{_SHM_BYTES >> 20} MiB free", "free some, or start the container with a larger --shm-size"
    try:
        free = psutil.disk_usage(folder).free
    except OSError as error:
        advice = f"mount a tmpfs at {folder}"
        return Check(
            name="shared memory", level="fail", seen=f"{folder}: {error.strerror}", wanted=wanted, advice=advice
        )
    seen = f"{free >> 20} MiB free in {folder}"
    if free < _SHM_BYTES:
        return Check(name="shared memory", level="warn", seen=seen, wanted=wanted, advice=advice)
    return Check(name="shared memory", level="ok", seen=seen)


def oversleeps_us() -> list[float]:
    """Return how much too long sleeps of 1 ms are, in microseconds, sorted; takes 0.3 s."""
    clock = MonotonicClock()
    end, late = time.monotonic() + _SLEEPING_SECONDS, []
    while time.monotonic() < end:
        deadline_ns = clock.now_ns() + _SLEEP_NS
        clock.sleep_until(deadline_ns)
        late.append((clock.now_ns() - deadline_ns) / 1e3)
    return sorted(late)


def check_sleep(late_us: list[float]) -> Check:
    """Look at the lateness of sleeps: it costs the accelerators nothing as long as the next batch is not late."""
    middle, high = late_us[len(late_us) // 2], late_us[min(len(late_us) - 1, len(late_us) * 99 // 100)]
    seen = f"1 ms sleeps end {middle:.0f} us late (p99 {high:.0f} us)"
    if middle > _LATE_US:
        advice = "stop what else is running; workloads with steps of a few milliseconds will suffer"
        return Check(name="sleep", level="warn", seen=seen, wanted=f"below {_LATE_US} us", advice=advice)
    return Check(name="sleep", level="ok", seen=seen)


def check_meeting(timeout_seconds: float) -> Check:
    """Fork a few ranks, let them meet, and look at how long a meeting takes."""
    wanted, shared = f"below {_SLOW_MEETING_US} us", mmap.mmap(-1, 8)
    try:
        ends = run_ranks(_MEETING_RANKS, lambda comm: _meet(comm, shared), timeout_seconds=min(30.0, timeout_seconds))
        failure = first_failure(ends)
        problem = failure.message if failure else ""
    except DlemuError as error:
        problem = str(error)
    if problem:
        return Check(name="meeting", level="fail", seen=problem, wanted=f"{_MEETING_RANKS} ranks meet")
    us = struct.unpack("d", shared)[0]
    seen = f"{_MEETING_RANKS} ranks meet in {us:.0f} us"
    if us > _SLOW_MEETING_US:
        return Check(name="meeting", level="warn", seen=seen, wanted=wanted, advice="stop what else is running")
    return Check(name="meeting", level="ok", seen=seen)


def _meet(comm: Comm, shared: mmap.mmap) -> int:
    comm.all_reduce_max(0)
    started = time.monotonic_ns()
    for number in range(_MEETINGS):
        comm.all_reduce_max(number)
    if comm.rank == 0:
        struct.pack_into("d", shared, 0, (time.monotonic_ns() - started) / 1e3 / _MEETINGS)
    return 0


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f}"


def _limit(number: int) -> str:
    return "no limit" if number == resource.RLIM_INFINITY else f"{number:,}"
