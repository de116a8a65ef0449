"""CPU time and memory of each rank of this host, with all the processes that the rank started.

Memory is PSS (proportional set size; proc(5), smaps_rollup): it divides shared pages among the processes that share
them, so values can be added up. The kernel walks the page tables for it, so each reading has the PSS of only one rank.

CPU time is also read when an epoch begins or ends: the epochs of a short run would have no readings otherwise, and
finding what limited the run needs to know whether the run or other programs used the cores.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

from dlemu.telemetry.probe_base import COST_SHARE, AbsentError, ProbeBase, Reading, Scope

_CPU_COLUMNS = slice(11, 15)  # of /proc/PID/stat, counted after the name: utime, stime, and the same of reaped children
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_KIB_PER_MB = 1e6 / 1024
_READS_PER_LISTING = 8
"""CPU readings between searches for new processes of a rank; if one has ended, the next reading searches."""


class Probe(ProbeBase):
    """Reads the ranks of this host: CPU time and PSS, each as often as COST_SHARE allows."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        if not scope.ranks:
            raise AbsentError("telemetry: no rank is on this host")
        self._proc, self._ranks = scope.proc, dict(scope.ranks)
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._processes: dict[int, list[int]] = {}
        self._reads_since_listing = 0
        self._pss_queue: list[int] = []
        self._at_epoch_edge = False
        self._cpu_due_ns = self._pss_due_ns = 0

    def train(self, training: bool, now_ns: int) -> None:
        """Make the next reading list each rank's processes and read their CPU time, whatever it costs."""
        self._at_epoch_edge, self._reads_since_listing, self._cpu_due_ns = True, 0, now_ns

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read all ranks' CPU time since they started and, except where an epoch begins or ends, one rank's PSS."""
        begun_ns = time.thread_time_ns()
        if now_ns >= self._cpu_due_ns:
            yield from self._read_cpu()
            self._cpu_due_ns = now_ns + round((time.thread_time_ns() - begun_ns) / COST_SHARE)
        # Walking the page tables would delay the first steps of an epoch.
        is_epoch_edge, self._at_epoch_edge = self._at_epoch_edge, False
        begun_ns = time.thread_time_ns()
        if now_ns >= self._pss_due_ns and not is_epoch_edge:
            yield from self._read_pss()
            self._pss_due_ns = now_ns + round((time.thread_time_ns() - begun_ns) / COST_SHARE)

    def _read_cpu(self) -> Iterator[Reading]:
        if self._reads_since_listing == 0:
            self._processes = {rank: self._with_descendants(process) for rank, process in self._ranks.items()}
        self._reads_since_listing = (self._reads_since_listing + 1) % _READS_PER_LISTING
        for rank, processes in self._processes.items():
            seconds = [used for process in processes if (used := self._cpu_seconds(process)) is not None]
            if len(seconds) < len(processes):
                self._reads_since_listing = 0
            elif seconds:
                yield Reading(f"rank {rank}", "cpu_seconds", sum(seconds))

    def _read_pss(self) -> Iterator[Reading]:
        self._pss_queue = self._pss_queue or list(self._processes)
        rank = self._pss_queue.pop(0)
        matches = [_PSS.search(self._text(f"{process}/smaps_rollup")) for process in self._processes[rank]]
        pss_kib = [int(match[1]) for match in matches if match]
        if pss_kib:
            yield Reading(f"rank {rank}", "pss_mb", sum(pss_kib) / _KIB_PER_MB)

    def _with_descendants(self, process: int) -> list[int]:
        """Return the ids of a process and its living descendants, without this process (the recorder)."""
        if process == os.getpid() or not os.path.isdir(f"{self._proc}/{process}"):
            return []
        processes = [process]
        for task in self._tasks(process):
            for child in self._text(f"{process}/task/{task}/children").split():
                processes += self._with_descendants(int(child))
        return processes

    def _tasks(self, process: int) -> list[str]:
        with contextlib.suppress(OSError):
            return os.listdir(f"{self._proc}/{process}/task")
        return []

    def _cpu_seconds(self, process: int) -> float | None:
        columns = self._text(f"{process}/stat").rpartition(")")[2].split()
        return sum(map(int, columns[_CPU_COLUMNS])) / self._ticks_per_second if columns else None

    def _text(self, path: str) -> str:
        """Return a file's content; empty if the process has ended or belongs to another user."""
        with contextlib.suppress(OSError), open(f"{self._proc}/{path}") as lines:
            return lines.read()
        return ""
