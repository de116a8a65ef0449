"""Finds the children of this process, quickly: no test may leave a process behind."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.zygote import zygote_processes

GRACE_SECONDS = 60.0
"""On a busy machine, a process may take seconds to end."""
SHARED = ("rclone", "munged", "slurmctld", "slurmd", "multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Words in the command lines of processes that may outlive a test: those shared by tests, and Python's own."""


def children() -> set[int]:
    """Return the ids of this process's children, including zombies, but not the zygotes."""
    pids: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended, or a kernel that does not list children
            pids |= {int(pid) for pid in file.read_text().split()}
    return pids - zygote_processes


def fail_if_any_is_left(before: set[int]) -> None:
    """Fail if a child has been started since `before` and does not end; kill it, so that other tests don't see it."""
    new = {pid: _command(pid) for pid in children() - before}
    alive = {pid: command for pid, command in new.items() if command and not any(word in command for word in SHARED)}
    deadline = time.monotonic() + GRACE_SECONDS
    while alive and time.monotonic() < deadline:
        alive = {pid: command for pid, command in alive.items() if _command(pid)}
        time.sleep(0.02)
    for pid in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    if alive:
        pytest.fail(f"still there after the test: {sorted(alive.values())}")


def _command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return ""
