"""How a worker process behaves: it yields the core to trainers, and never outlives its rank."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal

from dlemu.comm.process import die_with_parent


def settle_worker(nice: int, rank_process: int) -> None:
    """Lower this worker's priority, leave Ctrl-C to the rank, and die with the rank whatever ends it.

    A worker that a fork server made dies with the server, which ends with the rank.
    """
    parent = os.getppid()
    die_with_parent(parent if _is_fork_server_child(parent, rank_process) else rank_process)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice)
    gc.freeze()  # what came from the rank stays on pages shared with it


def _is_fork_server_child(parent: int, rank_process: int) -> bool:
    return parent != rank_process and multiprocessing.get_start_method(allow_none=True) == "forkserver"
