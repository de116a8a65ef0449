"""How what reads behaves: workers and threads yield the core to trainers, and no worker outlives its rank."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from dlemu.comm import die_with_parent


def init_worker(nice: int, rank_process: int) -> None:
    """Lower this worker's priority, leave Ctrl-C to the rank, and die with the rank whatever ends it.

    A worker that a fork server made dies with the server, which ends with the rank.
    """
    parent = os.getppid()
    die_with_parent(parent if _is_fork_server_child(parent, rank_process) else rank_process)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice)
    gc.freeze()  # what came from the rank stays on pages shared with it


T = TypeVar("T")


def lowered(call: Callable[[], T], nice: int) -> T:
    """Make a call in a thread of lower priority, which all threads inherit that it starts (Linux)."""
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        os.nice(nice)
        try:
            made.append(call())
        except BaseException as error:  # carried to the caller, whatever it is
            failed.append(error)

    starter = threading.Thread(target=run, name="dlemu-starter")
    starter.start()
    starter.join()
    if failed:
        raise failed[0]
    return made[0]


def _is_fork_server_child(parent: int, rank_process: int) -> bool:
    return parent != rank_process and multiprocessing.get_start_method(allow_none=True) == "forkserver"
