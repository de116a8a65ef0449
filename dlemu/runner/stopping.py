"""Stops a run early: another process creates a file, rank 0 notices it, and all ranks end after the current step."""

from __future__ import annotations

import os
import time

from datagen.owned import create_new

STOP = "stop"
_CHECK_SECONDS = 0.2  # a check costs a system call, or a request to a file server: too expensive after each step


def request_stop(live_folder: str) -> None:
    """Make the run with this live folder end after its current step; does nothing if it has already ended."""
    try:
        os.close(create_new(os.path.join(live_folder, STOP)))
    except (FileNotFoundError, FileExistsError):
        return


class StopFile:
    """Call it after each step: returns whether to stop. Checks for the file at most five times a second."""

    def __init__(self, live_folder: str) -> None:
        self._path = os.path.join(live_folder, STOP)
        self._due_seconds = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._due_seconds:
            return False
        self._due_seconds = now + _CHECK_SECONDS
        return os.path.exists(self._path)
