"""Ends a run early and in order: its watcher creates a file, rank 0 sees it, all ranks end after the current step."""

from __future__ import annotations

import os
import time

from datagen.owned import create_new

STOP = "stop"
_LOOK_SECONDS = 0.2  # each look costs a system call, or a request to a file server: too much for every step


def ask_to_stop(live_folder: str) -> None:
    """Have the run with this live folder end after its current step; does nothing if it has already ended."""
    try:
        os.close(create_new(os.path.join(live_folder, STOP)))
    except (FileNotFoundError, FileExistsError):
        return


class StopFile:
    """Called after each step, returns whether to stop; looks for the file at most five times a second."""

    def __init__(self, live_folder: str) -> None:
        self._path = os.path.join(live_folder, STOP)
        self._due_seconds = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._due_seconds:
            return False
        self._due_seconds = now + _LOOK_SECONDS
        return os.path.exists(self._path)
