"""How much CPU time a container or a batch job may use: the limit of its control group, which affinity does not show.

cgroup v2: `cpu.max` (Documentation/admin-guide/cgroup-v2.rst). v1: `cpu.cfs_quota_us` over `cpu.cfs_period_us`
(Documentation/scheduler/sched-bwc.rst). A group may use no more than those above it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def cpu_limit(proc: str = "/proc") -> float | None:
    """Return as how many cores' time this process and its kin may use, or None where nothing limits them."""
    limits = [limit for folder in _groups(proc) for limit in (_v2_limit(folder), _v1_limit(folder)) if limit]
    return min(limits, default=None)


def limiting_groups(proc: str = "/proc") -> tuple[str, ...]:
    """Return the folders of the control groups that limit the CPU time of this process."""
    return tuple(folder for folder in _groups(proc) if _v2_limit(folder) or _v1_limit(folder))


def _groups(proc: str) -> Iterator[str]:
    """Yield the folders of this process's control groups that can limit CPU time, and of all that are visible above."""
    own = _own_groups(proc)
    for line in _lines(f"{proc}/self/mountinfo"):
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split()[:3]
        path = own.get("" if kind == "cgroup2" else "cpu")
        if path is None or not (kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(","))):
            continue
        # A container may see its own group as the root of the mount.
        inside = os.path.relpath(path, root) if os.path.commonpath([path, root]) == root else "."
        while inside not in ("", "."):
            yield os.path.join(mount, inside)
            inside = os.path.dirname(inside)
        yield mount


def _own_groups(proc: str) -> dict[str, str]:
    """Return this process's group in the hierarchy of each v1 controller, and in that of v2 by the name ''."""
    found = {}
    for line in _lines(f"{proc}/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _v2_limit(folder: str) -> float | None:
    words = " ".join(_lines(os.path.join(folder, "cpu.max"))).split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _v1_limit(folder: str) -> float | None:
    quota, period = (
        int(next(iter(_lines(os.path.join(folder, f"cpu.cfs_{name}_us"))), "-1")) for name in ("quota", "period")
    )
    return quota / period if quota > 0 and period > 0 else None


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError), open(path) as lines:
        return lines.read().splitlines()
    return []
