"""CPU time and memory of each rank of this host, with all the processes that the rank started.

PSS (proportional set size) splits shared pages among those that share them, so that sums are true: proc(5),
smaps_rollup. It costs the kernel a walk through the page tables, so each reading has the PSS of one rank, in turn.

CPU time is read at the begin and the end of each epoch too: a run of a few seconds has no other readings within its
epochs, and who used the cores (this run, or other programs) decides what limited it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

from dlemu.telemetry.probe_base import COST_SHARE, AbsentError, ProbeBase, Reading, Scope

_CPU_COLUMNS = slice(11, 15)  # of /proc/PID/stat behind the name: utime, stime, and those of children that were reaped
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_KIB_PER_MB = 1e6 / 1024
_FAMILY_READS = 8
"""Readings after which a rank's processes are looked for again; at once when one of them has ended."""


class Probe(ProbeBase):
    """The ranks of this host. CPU time and PSS are each read as often as COST_SHARE allows."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        if not scope.ranks:
            raise AbsentError("telemetry: no rank is on this host")
        self._proc, self._ranks = scope.proc, dict(scope.ranks)
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._families: dict[int, list[int]] = {}
        self._age = 0
        self._to_weigh: list[int] = []
        self._at_mark = False
        self._cpu_due_ns = self._pss_due_ns = 0

    def train(self, training: bool, now_ns: int) -> None:
        """Have the next reading look for each rank's processes and read their CPU time, whatever it costs."""
        self._at_mark, self._age, self._cpu_due_ns = True, 0, now_ns

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the CPU time of all ranks since they began; between the marks of epochs also the memory of one rank."""
        begun_ns = time.thread_time_ns()
        if now_ns >= self._cpu_due_ns:
            yield from self._read_cpu()
            self._cpu_due_ns = now_ns + round((time.thread_time_ns() - begun_ns) / COST_SHARE)
        # A walk through page tables would delay the first steps of an epoch.
        is_at_mark, self._at_mark = self._at_mark, False
        begun_ns = time.thread_time_ns()
        if now_ns >= self._pss_due_ns and not is_at_mark:
            yield from self._read_pss()
            self._pss_due_ns = now_ns + round((time.thread_time_ns() - begun_ns) / COST_SHARE)

    def _read_cpu(self) -> Iterator[Reading]:
        if self._age == 0:
            self._families = {rank: self._family(process) for rank, process in self._ranks.items()}
        self._age = (self._age + 1) % _FAMILY_READS
        for rank, family in self._families.items():
            seconds = [used for process in family if (used := self._cpu_seconds(process)) is not None]
            if len(seconds) < len(family):
                self._age = 0
            elif seconds:
                yield Reading(f"rank {rank}", "cpu_seconds", sum(seconds))

    def _read_pss(self) -> Iterator[Reading]:
        self._to_weigh = self._to_weigh or list(self._families)
        rank = self._to_weigh.pop(0)
        weights = [int(weight[1]) for process in self._families[rank] if (weight := self._weight(process))]
        if weights:
            yield Reading(f"rank {rank}", "pss_mb", sum(weights) / _KIB_PER_MB)

    def _weight(self, process: int) -> re.Match[str] | None:
        return _PSS.search(self._text(f"{process}/smaps_rollup"))

    def _family(self, process: int) -> list[int]:
        """Return a process and its living descendants, without this one."""
        if process == os.getpid() or not os.path.isdir(f"{self._proc}/{process}"):
            return []
        family = [process]
        for task in self._tasks(process):
            for child in self._text(f"{process}/task/{task}/children").split():
                family += self._family(int(child))
        return family

    def _tasks(self, process: int) -> list[str]:
        with contextlib.suppress(OSError):
            return os.listdir(f"{self._proc}/{process}/task")
        return []

    def _cpu_seconds(self, process: int) -> float | None:
        columns = self._text(f"{process}/stat").rpartition(")")[2].split()
        return sum(map(int, columns[_CPU_COLUMNS])) / self._ticks_per_second if columns else None

    def _text(self, path: str) -> str:
        """Return a file's content; nothing when the process is gone or not ours."""
        with contextlib.suppress(OSError), open(f"{self._proc}/{path}") as lines:
            return lines.read()
        return ""
