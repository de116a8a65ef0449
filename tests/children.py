"""The children of this process, cheaply: after each test nobody may be left whom it started."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.zygote import zygote_processes

GRACE_SECONDS = 60.0
"""A machine under load takes seconds to end a process that was told to end."""
SHARED = ("rclone", "munged", "slurmctld", "slurmd", "multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Words in the command lines of those that outlive a test: what several tests use, and Python's own."""


def children() -> set[int]:
    """Return the process ids of this process's children, ended ones that nobody waited for among them; no zygotes."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended, or a kernel that does not list them
            found |= {int(word) for word in file.read_text().split()}
    return found - zygote_processes


def fail_if_any_is_left(before: set[int]) -> None:
    """Fail when a child that was not there before is there still, and end it, so that other tests do not see it."""
    left = {pid: _command(pid) for pid in children() - before}
    left = {pid: command for pid, command in left.items() if command and not any(word in command for word in SHARED)}
    deadline = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < deadline:
        left = {pid: command for pid, command in left.items() if _command(pid)}
        time.sleep(0.02)
    for pid in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    if left:
        pytest.fail(f"still there after the test: {sorted(left.values())}")


def _command(pid: int) -> str:
    """Return what a process runs; nothing once it has ended, waited for or not."""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return ""
