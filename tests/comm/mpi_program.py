"""What `test_mpi` starts under mpirun: one scenario, told by its arguments; rank 0 prints what it found as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import psutil

from datagen.errors import DlemuError
from dlemu.comm.comm_base import Comm, launcher_size
from dlemu.comm.guardian import watch
from dlemu.comm.mpi import MpiComm

LONG_SECONDS = 600.0
BOOTED_LATER_NS = 1000 * 10**9
"""By which the clock of each pretended host is behind that of the one before."""
PIECE_BYTES = 4_000_000
"""Of a large value, in place of 64 MiB, of which several take seconds."""


def round_robin(nodes: int) -> Callable[[int], int]:
    return lambda rank: rank % nodes


def blocks(nodes: int) -> Callable[[int], int]:
    return lambda rank: rank * nodes // launcher_size()


SPLITS: dict[str, Callable[[int], int] | None] = {
    "one": None,
    "cycle-2": round_robin(2),
    "cycle-3": round_robin(3),
    "block-2": blocks(2),
    "each": lambda rank: rank,
}


def work(comm: Comm, megabytes: int) -> dict[str, Any] | None:
    """Use every call, on hosts whose clocks differ; return on rank 0 what came of it."""
    real_ns = time.monotonic_ns
    later = mock.patch("time.monotonic_ns", side_effect=lambda: real_ns() - comm.node * BOOTED_LATER_NS)
    with later, mock.patch("dlemu.comm.mpi._PIECE_BYTES", PIECE_BYTES):
        comm.synchronise_clocks()
        return _use_all(comm, megabytes)


def _use_all(comm: Comm, megabytes: int) -> dict[str, Any] | None:
    stamp_ns = time.monotonic_ns()
    highest = [comm.all_reduce_max(stamp_ns + 10**9 * (rank == comm.rank)) - stamp_ns for rank in range(comm.size)]
    offsets = comm.synchronise_clocks()
    payload = bytes([comm.rank]) * (megabytes * 1_000_000)
    parts = comm.gather((comm.rank, comm.node, comm.local_rank, comm.local_size, highest, payload))
    echo = comm.broadcast(None if parts is None else [part[-1] for part in parts])
    right = [bytes([rank]) * (megabytes * 1_000_000) for rank in range(comm.size)] == echo
    agreed = comm.gather((right, comm.hosts, offsets))
    if parts is None or agreed is None:
        return None
    return {"ranks": [part[:-1] for part in parts], "agreed": agreed}


def wait(comm: Comm) -> dict[str, Any] | None:
    """Let rank 0 come a second late and add up what the others spend."""
    comm.all_reduce_max(0)
    spent_seconds = time.process_time()
    if comm.rank == 0:
        time.sleep(1.0)
    comm.all_reduce_max(0)
    spent = comm.gather(time.process_time() - spent_seconds)
    return None if spent is None else {"spent_seconds": sum(spent)}


def lose(comm: Comm, how: str) -> None:
    """Let the last rank go missing."""
    comm.all_reduce_max(0)
    if comm.rank == comm.size - 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "sleep":
            time.sleep(LONG_SECONDS)
        if how == "fail":
            raise DlemuError("the last rank failed")
    comm.all_reduce_max(1)


def unlink_shared_memory(comm: Comm) -> None:
    """Unlink what MPICH mapped from /dev/shm: an aborted MPICH leaves it there."""
    comm.all_reduce_max(0)  # all have mapped it
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/dev/shm/mpich" in line}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def listening() -> set[str]:
    """Return where this process, or the launcher whose descriptors it has, waits for calls from the network."""
    connections = psutil.Process().net_connections(kind="inet")
    return {f"{one.laddr.ip}:{one.laddr.port}" for one in connections if one.status == psutil.CONN_LISTEN}


def main() -> None:
    scenario, split, argument = sys.argv[1:4]
    guardian = watch(lambda: _note(sys.argv[4])) if scenario == "guarded" else None
    before = listening()
    comm = MpiComm(1.0 if argument == "sleep" else LONG_SECONDS, SPLITS[split])
    try:
        if scenario in ("work", "work and wait"):
            found = work(comm, int(argument))
            if scenario == "work and wait":
                found = (found or {}) | (wait(comm) or {})
        elif scenario == "listen":
            found = {"addresses": comm.gather(sorted(listening() - before))}
        else:
            unlink_shared_memory(comm)
            lose(comm, argument)
        if guardian is not None:
            guardian.release()
        comm.close()
    except DlemuError as error:
        print(error, file=sys.stderr, flush=True)
        comm.abort(error.exit_status)
    if comm.rank == 0:
        print(json.dumps(found))


def _note(folder: str) -> None:
    open(os.path.join(folder, str(os.getpid())), "w").close()


if __name__ == "__main__":
    main()
