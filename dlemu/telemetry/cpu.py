"""CPU time by state, of all cores together, from the first line of /proc/stat (proc(5)); and what a CPU limit withheld.

A control group with a limit counts its periods and those in which it had used up its share, in `cpu.stat`
(https://docs.kernel.org/scheduler/sched-bwc.html; in both versions of control groups).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Rates, Reading, Scope

_STATES = {"user": (0, 1), "system": (2, 5, 6), "idle": (3,), "iowait": (4,), "steal": (7,)}
"""Columns of each state: user has nice, system the interrupts. The columns after them (guest) are in user already."""
_COLUMNS = 8  # user to steal; guest time (columns 9 and 10) is part of user time already
_PERIODS = re.compile(r"^(nr_periods|nr_throttled) (\d+)$", re.MULTILINE)


class Probe(ProbeBase):
    """Shares of all cores' time by state, which add up to 100; read at the marks of epochs, as process.py is."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        self._stat, self._rates = Counters(f"{scope.proc}/stat"), Rates()
        counts = {folder: f"{folder}/cpu.stat" for folder in scope.cpu_groups}
        self._groups = {folder: Counters(path) for folder, path in counts.items() if os.access(path, os.R_OK)}

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the shares since the last reading."""
        ticks = [int(field) for field in self._stat.text().split("\n", 1)[0].split()[1 : _COLUMNS + 1]]
        # iowait may go back a little (proc(5)): sums of states are kept from doing so
        passed = self._rates.since_last("", now_ns, [sum(ticks[: column + 1]) for column in range(_COLUMNS)])
        if passed is not None and passed[1][-1]:
            sums = [0.0, *passed[1]]
            for state, columns in _STATES.items():
                grown = sum(max(0.0, sums[column + 1] - sums[column]) for column in columns)
                yield Reading("", f"{state}_percent", 100 * grown / passed[1][-1])
        yield from self._throttled(now_ns)

    def _throttled(self, now_ns: int) -> Iterator[Reading]:
        """Yield the share of its periods in which the tightest group had to wait for the next one."""
        shares = []
        for folder, counters in self._groups.items():
            counts = dict(_PERIODS.findall(counters.text()))
            passed = self._rates.since_last(folder, now_ns, [int(count) for count in counts.values()])
            if passed is not None and len(counts) == 2:
                grown = dict(zip(counts, passed[1], strict=True))
                shares.append(100 * grown["nr_throttled"] / grown["nr_periods"] if grown["nr_periods"] else 0.0)
        if shares:
            yield Reading("", "throttled_percent", max(shares))
