"""Context switches, and the numbers of tasks that are runnable or blocked by I/O, from /proc/stat (proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Rates, Reading, Scope

_LINES = re.compile(r"^(ctxt|procs_running|procs_blocked) (\d+)$", re.MULTILINE)


class Probe(ProbeBase):
    """Counts the tasks of the whole host."""

    def __init__(self, scope: Scope) -> None:
        self._stat, self._rates = Counters(f"{scope.proc}/stat"), Rates()

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the rate of context switches since the last reading, and the current numbers of tasks."""
        counters = {name: int(value) for name, value in _LINES.findall(self._stat.text())}
        passed = self._rates.since_last("", now_ns, [counters["ctxt"]])
        if passed is not None:
            yield Reading("", "context_switches_per_second", passed[1][0] / passed[0])
        yield Reading("", "running_tasks", counters["procs_running"])
        yield Reading("", "blocked_tasks", counters["procs_blocked"])
