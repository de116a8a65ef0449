"""What the first rank of each host does for the others: describe the host, start and stop its telemetry recorder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dlemu.config.schema import Telemetry
from dlemu.machine.cgroup_limits import limiting_groups
from dlemu.machine.environment import HostFacts, describe_host
from dlemu.ranks import Comm, within
from dlemu.results.live import RunJournal
from dlemu.telemetry import HostTelemetry, Recorder, Scope, Task, start_recorder


def recorder_for(
    settings: Telemetry,
    folders: Callable[[], Iterator[str]],
    live_folder: str,
    comm: Comm,
    *,
    timeout_seconds: float,
    what: str,
    request_folder: str = "",
) -> Recorder | None:
    """Start this host's recorder on its first rank; None on others, or if telemetry is off. All ranks must call this.

    `folders` returns the folders whose devices are watched; `what` names them in messages. `request_folder`, if given,
    has the counts of object requests.
    """
    if not settings.enabled:
        return None
    processes = comm.broadcast(comm.gather((comm.node, os.getpid())))
    if comm.local_rank != 0:
        return None
    ranks = {rank: process for rank, (node, process) in enumerate(processes) if node == comm.node}
    scope = Scope(
        folders=within(timeout_seconds, lambda: tuple(folders()), f"looking for the devices of {what}"),
        ranks=ranks,
        cpu_groups=limiting_groups(),
        request_folder=request_folder,
    )
    task = Task(scope=scope, node=comm.node, interval_seconds=settings.interval_seconds)
    return start_recorder(task, live_folder)


def describe_hosts(comm: Comm) -> tuple[tuple[HostFacts, ...], tuple[int, ...]] | None:
    """Return each node's facts in node order, and the node of each rank, on rank 0; None elsewhere. Collective."""
    host = describe_host() if comm.local_rank == 0 else None
    nodes: list[tuple[int, HostFacts | None]] | None = comm.gather((comm.node, host))
    if nodes is None:
        return None
    hosts = {node: described for node, described in nodes if described is not None}
    return tuple(hosts[node] for node in sorted(hosts)), tuple(node for node, _ in nodes)


class Recording(NamedTuple):
    """What a rank returns of its host's recorder at the end."""

    telemetry: HostTelemetry | None
    """None on ranks without a recorder."""
    is_lost: bool
    """Whether the recorder died before its last reading."""


def stopped(recorder: Recorder | None) -> Recording:
    """Stop this rank's recorder, if it has one, and return its telemetry."""
    return Recording(None, is_lost=False) if recorder is None else Recording(recorder.stop(), recorder.lost)


def recorded(parts: Sequence[Recording], journal: RunJournal) -> tuple[tuple[int, ...], tuple[HostTelemetry, ...]]:
    """Return the nodes whose recorders were lost, and the telemetry of all hosts by node; `parts` has one per rank."""
    lost = tuple(node for node, part in zip(journal.rank_nodes, parts, strict=True) if part.is_lost)
    hosts = (part.telemetry for part in parts if part.telemetry is not None)
    return lost, tuple(sorted(hosts, key=lambda host: host.node))
