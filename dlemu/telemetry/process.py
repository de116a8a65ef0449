"""What each rank takes of this host with all the processes it started: CPU time and memory.

PSS (proportional set size) splits shared pages among those that share them, so that sums are true: proc(5),
smaps_rollup. It costs the kernel a walk through the page tables, so one process is read at a time, in turn.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from dlemu.telemetry.base import AbsentError, ProbeBase, Reading, Scope

_CPU_COLUMNS = slice(11, 15)  # of /proc/PID/stat behind the name: utime, stime, and those of children that were reaped
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_KIB_PER_MB = 1e6 / 1024


class Probe(ProbeBase):
    """The ranks of this host."""

    def __init__(self, scope: Scope) -> None:
        if not scope.ranks:
            raise AbsentError("telemetry: no rank is on this host")
        self._proc, self._ranks = scope.proc, dict(scope.ranks)
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._to_weigh: list[tuple[int, int]] = []
        self._pss_mb: dict[int, dict[int, float]] = {}

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the CPU time of all ranks since they began, and the memory of one process."""
        families = {rank: self._family(process) for rank, process in self._ranks.items()}
        for rank, family in families.items():
            if family:
                yield Reading(f"rank {rank}", "cpu_seconds", sum(map(self._cpu_seconds, family)))
        if not self._to_weigh:
            self._to_weigh = [(rank, process) for rank, family in families.items() for process in family]
        yield from self._weigh()

    def _weigh(self) -> Iterator[Reading]:
        """Read the next process; a rank whose last one that was has its sum told."""
        if not self._to_weigh:
            return
        rank, process = self._to_weigh.pop(0)
        found = _PSS.search(self._text(f"{process}/smaps_rollup"))
        if found:
            self._pss_mb.setdefault(rank, {})[process] = int(found[1]) / _KIB_PER_MB
        if not self._to_weigh or self._to_weigh[0][0] != rank:
            weighed = self._pss_mb.pop(rank, {})
            if weighed:
                yield Reading(f"rank {rank}", "pss_mb", sum(weighed.values()))

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

    def _cpu_seconds(self, process: int) -> float:
        columns = self._text(f"{process}/stat").rpartition(")")[2].split()
        return sum(map(int, columns[_CPU_COLUMNS])) / self._ticks_per_second

    def _text(self, path: str) -> str:
        """Return a file's content; nothing when the process is gone or not ours."""
        with contextlib.suppress(OSError), open(f"{self._proc}/{path}") as lines:
            return lines.read()
        return ""
