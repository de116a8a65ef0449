"""Runs several ranks in a test, as threads that communicate by sockets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psutil

from dlemu.ranks import Comm
from dlemu.ranks.comm import HostRanks, connected

Result = TypeVar("Result")

PATIENCE_SECONDS = 120.0
"""Timeout of what should take milliseconds: only a hang takes so long."""


def in_threads(
    size: int, work: Callable[[Comm], Result], timeout_seconds: float = PATIENCE_SECONDS
) -> list[Result | Exception]:
    """Run `work` on each rank; return the results or exceptions."""

    def run(comm: Comm) -> Result | Exception:
        try:
            return work(comm)
        except Exception as error:
            return error
        finally:
            comm.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, comms(size, timeout_seconds)))


def comms(size: int, timeout_seconds: float = PATIENCE_SECONDS) -> list[Comm]:
    return connected(HostRanks(members=range(size), size=size), timeout_seconds)[0]


def lives(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
