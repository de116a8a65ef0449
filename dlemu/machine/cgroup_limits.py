"""The CPU time and memory that a container or batch job may use: limits of its control groups, space in /dev/shm.

cgroup v2: `cpu.max`, `memory.max` (Documentation/admin-guide/cgroup-v2.rst). v1: `cpu.cfs_quota_us` over
`cpu.cfs_period_us` (Documentation/scheduler/sched-bwc.rst), `memory.limit_in_bytes`
(Documentation/admin-guide/cgroup-v1/memory.rst). The limits of a group also apply to all groups below it. Neither CPU
affinity nor /proc/meminfo shows these limits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

_NO_LIMIT = 2**62  # limits from here on mean "no limit": v1 shows 2^63, rounded down to a multiple of the page size
LEAST_SHARED_BYTES = 1 << 20  # MPI libraries need more, and are killed by SIGBUS when /dev/shm is full


@dataclass(frozen=True)
class HostMemory:
    """The memory that this process can use, together with the others of its control group."""

    total_bytes: int  # the host's memory, or the control group's limit if that is less
    available_bytes: int  # memory that can still be allocated without swapping, on the host and within the limit
    limit_bytes: int | None  # the control group's limit; None if there is none below the host's memory


def cpu_limit(proc: str = "/proc") -> float | None:
    """Return the limit of this process's CPU time, as a number of cores; None without a limit."""
    return min(filter(None, map(_cores, _groups(proc, "cpu"))), default=None)


def limiting_groups(proc: str = "/proc") -> tuple[str, ...]:
    """Return the folders of the control groups that limit the CPU time of this process."""
    return tuple(filter(_cores, _groups(proc, "cpu")))


def _cores(folder: str) -> float | None:
    """Return the CPU limit of the control group in a folder, as a number of cores; None if it sets none."""
    words = " ".join(_lines(f"{folder}/cpu.max")).split()
    words = words or [*_lines(f"{folder}/cpu.cfs_quota_us"), *_lines(f"{folder}/cpu.cfs_period_us")]
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] not in ("max", "-1") else None


def memory_limit_bytes(proc: str = "/proc") -> int | None:
    """Return the limit of the memory of this process's control group; None without a limit."""
    return min((limit for limit, _ in _memory(proc)), default=None)


def group_limits(proc: str = "/proc") -> tuple[object, ...]:
    """Return what this process's control groups limit: a process of groups with equal limits may replace it."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # of v2 and v1
    cpus = [_lines(f"{folder}/{name}") for folder in _groups(proc, "cpuset") for name in names]
    return cpu_limit(proc), memory_limit_bytes(proc), cpus


def host_memory(proc: str = "/proc") -> HostMemory:
    """Return the memory that this process can use within its groups' limits; inactive page cache is available."""
    memory = psutil.virtual_memory()
    limits = list(_memory(proc))
    limit = min((limit for limit, _ in limits), default=memory.total)
    if limit >= memory.total:
        return HostMemory(memory.total, memory.available, None)
    available = min(available for _, available in limits)
    return HostMemory(limit, max(0, min(memory.available, available)), limit)


def out_of_memory_hint(proc: str = "/proc") -> str:
    """Return advice about a process killed by SIGKILL, from the out-of-memory kills that its groups have counted."""
    names = ("memory.events", "memory.oom_control")  # of v2 and v1
    lines = [line for folder in _groups(proc, "memory") for name in names for line in _lines(f"{folder}/{name}")]
    kills = max((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), default=0)
    limit = memory_limit_bytes(proc)
    if not kills or limit is None:
        return "if the machine ran out of memory, `dmesg` names the process"
    processes = "1 process" if kills == 1 else f"{kills} processes"
    return (
        f"the kernel has killed {processes} of this container or job (control group) at its limit of "
        f"{limit / 2**20:,.0f} MiB of memory: raise it"
    )


def _memory(proc: str) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes of it that can still be allocated) for each group that limits this process's memory."""
    for folder in _groups(proc, "memory"):
        for limit_name, used_name, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number_in(f"{folder}/{limit_name}")
            if limit is not None:
                stat = dict(line.split(maxsplit=1) for line in _lines(f"{folder}/memory.stat") if " " in line)
                yield limit, limit - (_number_in(f"{folder}/{used_name}") or 0) + int(stat.get(cache_key, "0"))


def _number_in(path: str) -> int | None:
    """Return the limit or count in a control group's file; None if it is missing or means "no limit"."""
    word = next(iter(_lines(path)), "").strip()
    return int(word) if word.isdecimal() and int(word) < _NO_LIMIT else None


def _groups(proc: str, controller: str) -> Iterator[str]:
    """Yield the folders of this process's control group for a controller, and of all visible groups above it.

    Example for the group /batch/job7: /sys/fs/cgroup/batch/job7, /sys/fs/cgroup/batch, /sys/fs/cgroup.
    """
    group_of: dict[str, str] = {}  # v1 controller, or '' for v2 -> the process's group
    for line in _lines(f"{proc}/self/cgroup"):
        _, controllers, path = line.split(":", 2)  # 4:cpu,cpuacct:/batch/job7, or for v2 0::/batch/job7
        group_of.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines(f"{proc}/self/mountinfo"):
        mount_fields, _, file_system_fields = line.partition(" - ")
        root, mount = mount_fields.split()[3:5]
        file_system, _, options = file_system_fields.split(" ", 2)  # the second, the source, may be empty
        is_v2 = file_system == "cgroup2"
        group = group_of.get("" if is_v2 else controller)
        if group is None or not (is_v2 or (file_system == "cgroup" and controller in options.split(","))):
            continue
        # The mount shows the groups from `root` on. In a container, that may be the container's own group
        below_mount = os.path.relpath(group, root) if os.path.commonpath([group, root]) == root else "."
        while below_mount not in ("", "."):
            yield os.path.join(mount, below_mount)
            below_mount = os.path.dirname(below_mount)
        yield mount


def _lines(path: str) -> list[str]:
    """Return the lines of a file; empty if it can't be read."""
    with contextlib.suppress(OSError), open(path, errors="surrogateescape") as lines:
        return lines.read().splitlines()
    return []


def shared_memory_problem(folder: str = "/dev/shm") -> str:
    """Return why MPI libraries and PyTorch's workers can't use /dev/shm, with advice; empty if they can."""
    import tempfile  # takes milliseconds, and few processes need it

    try:
        with tempfile.TemporaryFile(dir=folder):
            state = os.statvfs(folder)
    except OSError as error:
        return f"{folder} can't be written ({error.strerror}): mount a tmpfs there"
    free_bytes = state.f_bavail * state.f_frsize
    if free_bytes < LEAST_SHARED_BYTES:
        return f"{folder} is full ({free_bytes} bytes left): free some, or start the container with a larger --shm-size"
    return ""
