"""/dev/shm: forked ranks need none of it, but MPI libraries and PyTorch's workers do, and fail in their own words."""

from __future__ import annotations

import os
import tempfile

FOLDER = "/dev/shm"
LEAST_BYTES = 1 << 20
"""What is to be free there; MPI libraries take more, and end by SIGBUS where there is less."""


def shared_memory_problem(folder: str = FOLDER) -> str:
    """Return what keeps programs from using the folder; empty when nothing does."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            state = os.statvfs(folder)
    except OSError as error:
        return f"{folder} can't be written ({error.strerror}): mount a tmpfs there"
    free_bytes = state.f_bavail * state.f_frsize
    if free_bytes < LEAST_BYTES:
        return f"{folder} is full ({free_bytes} bytes left): free some, or start the container with a larger --shm-size"
    return ""
