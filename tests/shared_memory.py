"""Finds files that are left in /dev/shm, and that no process uses."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_OURS = ("torch_", "psm_", "sem.", "dlemu")
"""Prefixes of the files of multiprocessing, PyTorch and dlemu."""
OF_MPI = ("mpich_shm", "sm_segment")
"""Prefixes of the files of MPI libraries, which leave them behind when killed."""
_OF_TESTS = ("dlemu-drive-", "dlemu-forge-")
"""Prefixes of files of tests that run at the same time. The kernel uses them, and their tests check their removal."""


def shared_memory(*also: str) -> dict[str, int]:
    """Return name -> inode of the files of multiprocessing, PyTorch and dlemu, and of those with prefixes `also`."""
    with os.scandir("/dev/shm") as entries:
        ours = [entry for entry in entries if entry.name.startswith((*_OURS, *also))]
        return {entry.name: entry.inode() for entry in ours if not entry.name.startswith(_OF_TESTS)}


def left_in_memory(before: dict[str, int], seconds: float, *also: str) -> list[str]:
    """Return the names of files that are new since `before`, and that no process uses or removes in `seconds`."""
    deadline = time.monotonic() + seconds
    left = shared_memory(*also).keys() - before.keys()
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        used = _used_inodes()
        left &= {name for name, inode in shared_memory(*also).items() if inode not in used}
    return sorted(left)


def _used_inodes() -> set[int]:
    """Return the inodes in /dev/shm that a process maps or has open; inodes, because semaphores are renamed."""
    used = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            mapped = (line.split() for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line)
            used |= {int(fields[4]) for fields in mapped}
            used |= set(map(_inode, (process / "fd").iterdir()))
    return used


def _inode(descriptor: Path) -> int:
    """Return the inode of an open file; 0 if it is not in /dev/shm."""
    with contextlib.suppress(OSError):  # the file was just closed
        return descriptor.stat().st_ino if os.readlink(descriptor).startswith("/dev/shm/") else 0
    return 0
