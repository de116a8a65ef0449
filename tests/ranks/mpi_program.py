"""What `test_mpi` starts under mpirun: one scenario, told by its arguments; rank 0 prints what it found as JSON."""

from __future__ import annotations

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
from dlemu.ranks import Comm, first_failure, run_ranks
from dlemu.ranks.host import join
from dlemu.ranks.launcher import launcher_size
from dlemu.ranks.mpi import MpiProcess

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
    comm.synchronise_clocks()
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
    spent_seconds = _cpu_seconds(comm)
    if comm.rank == 0:
        time.sleep(1.0)
    comm.all_reduce_max(0)
    spent = comm.gather(_cpu_seconds(comm) - spent_seconds)
    return None if spent is None else {"spent_seconds": sum(spent)}


def _cpu_seconds(comm: Comm) -> float:
    """Return the CPU time of this rank, of the first of a host with that of the leader."""
    leader = psutil.Process(os.getppid()).cpu_times() if comm.local_rank == 0 else None
    return time.process_time() + (leader.user + leader.system if leader else 0.0)


def lose(comm: Comm, how: str) -> None:
    comm.all_reduce_max(0)
    if comm.rank == comm.size - 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "sleep":
            time.sleep(LONG_SECONDS)
        if how == "fail":
            raise DlemuError("the last rank failed")
    comm.all_reduce_max(1)


def listening() -> set[str]:
    """Return where this process, or the launcher whose descriptors it has, waits for calls from the network."""
    connections = psutil.Process().net_connections(kind="inet")
    return {f"{one.laddr.ip}:{one.laddr.port}" for one in connections if one.status == psutil.CONN_LISTEN}


def run(comm: Comm, scenario: str, argument: str, before: set[str]) -> int:
    if scenario == "lose":
        lose(comm, argument)
    elif scenario == "listen":
        addresses = comm.gather(sorted(listening() - before))
        found: Any = {"addresses": addresses}
    else:
        found = work(comm, int(argument))
        if scenario == "work and wait":
            found = (found or {}) | (wait(comm) or {})
    if comm.rank == 0:
        print(json.dumps(found))
    return 0


def main() -> None:
    scenario, split, argument = sys.argv[1:4]
    before = listening()
    timeout_seconds = 1.0 if argument == "sleep" else LONG_SECONDS
    with mock.patch("dlemu.ranks.host.MpiProcess", lambda seconds: MpiProcess(seconds, SPLITS[split])):
        joined = join(timeout_seconds)
    if isinstance(joined, int):
        sys.exit(joined)
    real_ns = time.monotonic_ns
    later = mock.patch("time.monotonic_ns", side_effect=lambda: real_ns() - joined.node * BOOTED_LATER_NS)
    with later, mock.patch("dlemu.ranks.launcher._CHUNK_BYTES", PIECE_BYTES):
        ends = run_ranks(
            joined.ranks, lambda comm: run(comm, scenario, argument, before), timeout_seconds=timeout_seconds
        )
    failure = first_failure(ends)
    if failure is None:
        joined.close()
        return
    joined.report_failure(failure)
    print(failure.traceback or failure.message, file=sys.stderr, flush=True)
    joined.end(failure.status)


if __name__ == "__main__":
    main()
