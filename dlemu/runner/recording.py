"""What a rank records besides its rows: rank 0 keeps the run's journal, the first rank of each host its telemetry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlemu.machine.cgroup_limits import limiting_groups
from dlemu.machine.environment import HostFacts, StorageFacts, describe_host
from dlemu.ranks import Comm, within
from dlemu.results.live import RunJournal
from dlemu.results.measured import MeasuredLog
from dlemu.runner.run_folder import Job, requests_so_far
from dlemu.telemetry import HostTelemetry, Recorder, Scope, start_recorder

N = TypeVar("N", bound=RunJournal)
T = TypeVar("T")


class RankRecord(Generic[N]):
    """One rank's part of the record of a run. All ranks must call the methods that are marked as collective."""

    def __init__(self, job: Job, comm: Comm, journal: N, storage_name: str) -> None:
        """`storage_name` names the measured storage in messages."""
        self._job = job
        self._comm = comm
        self._storage_name = storage_name
        self.journal = journal  # only rank 0's is saved
        self._recorder: Recorder | None = None
        self._telemetry: HostTelemetry | None = None

    def start(self, folders: Callable[[], Iterable[str]]) -> None:
        """Start this host's recorder unless telemetry is off; it watches the devices of `folders()`. Collective."""
        job, comm = self._job, self._comm
        if not job.workload.telemetry.enabled:
            return
        processes = comm.broadcast(comm.gather((comm.node, os.getpid())))
        if comm.local_rank != 0:
            return
        scope = Scope(
            node=comm.node,
            interval_seconds=job.workload.telemetry.interval_seconds,
            folders=self._in_time("looking for the devices of", lambda: tuple(folders())),
            ranks={rank: process for rank, (node, process) in enumerate(processes) if node == comm.node},
            cpu_groups=limiting_groups(),
        )
        self._recorder = start_recorder(scope, job.live_folder)

    def _in_time(self, activity: str, access: Callable[[], T]) -> T:
        return within(self._job.workload.timeout_seconds, access, f"{activity} {self._storage_name}")

    def describe(self, find_storage: Callable[[], StorageFacts | None]) -> None:
        """Note the hosts, the host of each rank, and the storage in the journal. Collective."""
        host = describe_host() if self._comm.local_rank == 0 else None
        gathered: list[tuple[int, HostFacts | None]] | None = self._comm.gather((self._comm.node, host))
        if gathered is not None:
            hosts = {node: facts for node, facts in gathered if facts is not None}
            self.note(
                hosts=tuple(hosts[node] for node in sorted(hosts)),
                rank_nodes=tuple(node for node, _ in gathered),
                storage=self._in_time("finding the devices behind", find_storage),
            )

    def note(self, **changes: object) -> None:
        """Set fields of the journal. Rank 0 saves it at once, in case the run is killed."""
        self.journal = self.journal.noting(**changes)
        if self._comm.rank == 0:
            self.journal.save(self._job.live_folder)

    def mark(self) -> None:
        """Make the recorder read all counters now, as a measured period begins or ends."""
        if self._recorder is not None:
            self._recorder.mark()

    def stop(self) -> None:
        """Note the end of the run, stop the recorder, and count the requests to an object store. Collective."""
        ended_ns = self._comm.all_reduce_max(time.monotonic_ns())
        if self._recorder is not None:
            self._telemetry = self._recorder.stop()
        if self._comm.rank == 0:  # not saved yet: `collect` completes the journal
            self.journal = self.journal.noting(ended_ns=ended_ns, requests=requests_so_far(self._job.live_folder))

    def collect(self, rows: NDArray[np.void], **rank_fields: object) -> MeasuredLog[N] | None:
        """Return the log of all ranks on rank 0, None on others. Collective, after `stop`.

        Some fields of the journal have a value for each rank: `rank_fields` are this rank's values, by field.
        """
        has_lost_recorder = self._recorder is not None and self._recorder.lost
        gathered = self._comm.gather((rows, self._telemetry, has_lost_recorder, rank_fields))
        if gathered is None:
            return None
        rows_by_rank, telemetry, lost_flags, fields_by_rank = zip(*gathered, strict=True)
        lost_nodes = [node for node, lost in zip(self.journal.rank_nodes, lost_flags, strict=True) if lost]
        fields = {name: tuple(values[name] for values in fields_by_rank) for name in rank_fields}
        journal = self.journal.noting(lost_recorders=tuple(lost_nodes), **fields)
        hosts = sorted(filter(None, telemetry), key=lambda host: host.node)
        return MeasuredLog(np.concatenate(rows_by_rank), journal, tuple(hosts))
