"""What an MPI library leaves in /dev/shm when its ranks are killed, and nobody else removes."""

from __future__ import annotations

import contextlib
import os

_NAMES = ("mpich_shm", "sm_segment", "vader_segment")
"""How the shared-memory files of MPICH and Open MPI begin."""


def remove_shared_memory(process: int | str = "self") -> None:
    """Unlink the MPI library's files in /dev/shm that a process (this one: or its parent, before a fork) has mapped.

    Ranks that still use them keep their memory: only the names go. Call it when the job is lost.
    """
    for path in _mapped(process):
        with contextlib.suppress(OSError):  # another rank was faster
            os.unlink(path)


def _mapped(process: int | str) -> set[str]:
    with open(f"/proc/{process}/maps") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps if "/dev/shm/" in line}
    return {f"/{path}" for path in paths if os.path.basename(path).startswith(_NAMES)}
