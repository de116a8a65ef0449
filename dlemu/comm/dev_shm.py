"""/dev/shm: MPI libraries and PyTorch's workers need it, and their own messages on a full one are hard to read."""

from __future__ import annotations

import os
import tempfile

FOLDER = "/dev/shm"
LEAST_BYTES = 1 << 20
"""Least free space; MPI libraries take more, and are killed by SIGBUS when it runs out."""


def shared_memory_problem(folder: str = FOLDER) -> str:
    """Return why programs can't use the folder, with what to do; empty when they can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            state = os.statvfs(folder)
    except OSError as error:
        return f"{folder} can't be written ({error.strerror}): mount a tmpfs there"
    free_bytes = state.f_bavail * state.f_frsize
    if free_bytes < LEAST_BYTES:
        return f"{folder} is full ({free_bytes} bytes left): free some, or start the container with a larger --shm-size"
    return ""
