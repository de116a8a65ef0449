"""What lies in /dev/shm, and whether anybody still holds it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_OURS = ("torch_", "psm_", "sem.", "dlemu")
"""How the files begin that multiprocessing, PyTorch and dlemu make there."""
OF_MPI = ("mpich_shm", "sm_segment")
"""And those of MPI libraries, which leave theirs when they are killed."""
_OF_TESTS = ("dlemu-drive-", "dlemu-forge-")
"""Of tests that run beside: the kernel holds them, no process does, and their tests see that they go."""


def shared_memory(*also: str) -> dict[str, int]:
    """Return the names and inodes of such files, and of those that begin with `also`."""
    with os.scandir("/dev/shm") as entries:
        ours = [entry for entry in entries if entry.name.startswith((*_OURS, *also))]
        return {entry.name: entry.inode() for entry in ours if not entry.name.startswith(_OF_TESTS)}


def left_in_memory(before: dict[str, int], seconds: float, *also: str) -> list[str]:
    """Return the names of what was not there before, and that nobody holds or removes in this time."""
    deadline = time.monotonic() + seconds
    left = shared_memory(*also).keys() - before.keys()
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        held = _held()
        left &= {name for name, inode in shared_memory(*also).items() if inode not in held}
    return sorted(left)


def _held() -> set[int]:
    """Return the inodes in /dev/shm that a process maps or has open; a semaphore is mapped by a name it had before."""
    held = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            mapped = (line.split() for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line)
            held |= {int(words[4]) for words in mapped}
            held |= set(map(_inode, (process / "fd").iterdir()))
    return held


def _inode(opened: Path) -> int:
    """Return the inode of what is open, 0 where it is not in /dev/shm."""
    with contextlib.suppress(OSError):  # it was closed meanwhile
        return opened.stat().st_ino if os.readlink(opened).startswith("/dev/shm/") else 0
    return 0
