"""Ranks: how they find each other, agree and fail together. No other package knows whether MPI is used.

On a node ranks talk over a tree of Unix sockets that block in the kernel; MPI carries only what crosses nodes. May
import datagen alone.
"""

from dlemu.comm.comm_base import (
    Comm,
    Interrupted,
    Launcher,
    PeerLostError,
    detect_launcher,
    launcher_size,
    name_ranks,
)
from dlemu.comm.failure import Failure, RankEnd, first_failure
from dlemu.comm.launch import run_ranks
from dlemu.comm.local import LocalComm
from dlemu.comm.process_control import PatienceError, die_with_parent, interrupt_on, within

__all__ = [
    "Comm",
    "Failure",
    "Interrupted",
    "Launcher",
    "LocalComm",
    "PatienceError",
    "PeerLostError",
    "RankEnd",
    "detect_launcher",
    "die_with_parent",
    "first_failure",
    "interrupt_on",
    "launcher_size",
    "name_ranks",
    "run_ranks",
    "within",
]
