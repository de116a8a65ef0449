"""Ending a run early and in order: whoever watches it leaves a file, rank 0 sees it, all ranks end after one step."""

from __future__ import annotations

import os
import time

from datagen.owned import create_new

STOP = "stop"
_LOOK_SECONDS = 0.2  # a look is a system call, or a request to a shared folder's server: too much for each step


def ask_to_stop(live_folder: str) -> None:
    """Ask the run whose live folder this is to end after its current step; nothing happens when it has ended."""
    try:
        os.close(create_new(os.path.join(live_folder, STOP)))
    except (FileNotFoundError, FileExistsError):
        return


class StopFile:
    """Says whether the run is to stop; looks for the file a few times a second, whatever the steps take."""

    def __init__(self, live_folder: str) -> None:
        self._path = os.path.join(live_folder, STOP)
        self._due_seconds = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._due_seconds:
            return False
        self._due_seconds = now + _LOOK_SECONDS
        return os.path.exists(self._path)
