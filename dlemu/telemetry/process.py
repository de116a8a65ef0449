"""CPU time of each rank on this host, including all processes that the rank started.

These readings show whether the run itself or other programs used the cores. Ranks are also read when an epoch begins or
ends, because the epochs of a short run would otherwise have no readings.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from dlemu.telemetry.probe_base import COST_SHARE, AbsentError, ProbeBase, Reading, Scope, read_text

_CPU_COLUMNS = slice(11, 15)  # of /proc/PID/stat after the name: utime, stime, and both of reaped children
_READS_PER_LISTING = 8  # every 8th reading lists the ranks' processes again, and so does the one after a process ended


class Probe(ProbeBase):
    """Reads the ranks of this host, as often as COST_SHARE allows."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        if not scope.ranks:
            raise AbsentError("telemetry: no rank is on this host")
        self._proc, self._ranks = scope.proc, dict(scope.ranks)
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._processes: dict[int, list[int]] = {}  # process ids of each rank, as last listed
        self._reads_since_listing = 0  # 0: the next reading lists them
        self._due_ns = 0  # time before which `read` does nothing, to stay below COST_SHARE

    def mark(self, now_ns: int) -> None:
        """Let the next `read` list the ranks' processes and read their CPU time, even if that exceeds COST_SHARE."""
        self._reads_since_listing, self._due_ns = 0, now_ns

    def read(self, now_ns: int) -> Iterator[Reading]:
        if now_ns < self._due_ns:
            return
        cpu_before_ns = time.thread_time_ns()
        if self._reads_since_listing == 0:
            self._processes = {rank: self._with_descendants(process) for rank, process in self._ranks.items()}
        self._reads_since_listing = (self._reads_since_listing + 1) % _READS_PER_LISTING
        for rank, processes in self._processes.items():
            seconds = [self._cpu_seconds(process) for process in processes]
            if None in seconds:
                self._reads_since_listing = 0
            elif seconds:
                yield Reading(f"rank {rank}", "cpu_seconds", sum(filter(None, seconds)))
        self._due_ns = now_ns + round((time.thread_time_ns() - cpu_before_ns) / COST_SHARE)

    def _with_descendants(self, process: int) -> list[int]:
        """Return the ids of a process and its living descendants, except this process (the recorder)."""
        if process == os.getpid() or not os.path.isdir(f"{self._proc}/{process}"):
            return []
        processes = [process]
        with contextlib.suppress(OSError):
            for task in os.listdir(f"{self._proc}/{process}/task"):
                for child in read_text(f"{self._proc}/{process}/task/{task}/children").split():
                    processes += self._with_descendants(int(child))
        return processes

    def _cpu_seconds(self, process: int) -> float | None:
        """Return the CPU time of a process; None if it has ended or belongs to another user."""
        columns = read_text(f"{self._proc}/{process}/stat").rpartition(")")[2].split()
        return sum(map(int, columns[_CPU_COLUMNS])) / self._ticks_per_second if columns else None
