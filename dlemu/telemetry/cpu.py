"""CPU time of all cores by state, from the first line of /proc/stat (proc(5)), and throttling by CPU limits.

In `cpu.stat`, a cgroup with a CPU limit counts its periods, and the periods in which it used up its quota and was
throttled (https://docs.kernel.org/scheduler/sched-bwc.html; cgroup v1 and v2).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Rates, Reading, Scope

_STATES = {"user": (0, 1), "system": (2, 5, 6), "idle": (3,), "iowait": (4,), "steal": (7,)}
"""State -> its columns of /proc/stat: `user` includes nice, `system` includes interrupts."""
_COLUMNS = 8  # user to steal; the columns after them, guest time, are already part of user time
_PERIODS = re.compile(r"^(nr_periods|nr_throttled) (\d+)$", re.MULTILINE)


class Probe(ProbeBase):
    """Reads the percentages of all cores' time by state, which add up to 100, and of throttled periods."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        self._stat, self._rates = Counters(f"{scope.proc}/stat"), Rates()
        paths = {folder: f"{folder}/cpu.stat" for folder in scope.cpu_groups}
        self._groups = {folder: Counters(path) for folder, path in paths.items() if os.access(path, os.R_OK)}

    def read(self, now_ns: int) -> Iterator[Reading]:
        ticks = [int(field) for field in self._stat.text().split("\n", 1)[0].split()[1 : _COLUMNS + 1]]
        # `Rates` drops an interval in which a counter decreases, as iowait sometimes does (proc(5)). Cumulative sums of
        # the columns hardly ever decrease, so the rate of a column is the difference of the rates of two such sums.
        sums = {str(column): sum(ticks[: column + 1]) for column in range(_COLUMNS)}
        sum_rates = [0.0, *self._rates.per_second("", now_ns, sums).values()]
        if sum_rates[-1]:  # the rate of all columns; 0 at the first reading
            for state, columns in _STATES.items():
                rate = sum(max(0.0, sum_rates[column + 1] - sum_rates[column]) for column in columns)
                yield Reading("", f"{state}_percent", 100 * rate / sum_rates[-1])
        percents = []  # of throttled periods in each cgroup; the highest is reported
        for folder, counters in self._groups.items():
            counts = {name: int(count) for name, count in _PERIODS.findall(counters.text())}
            rates = self._rates.per_second(folder, now_ns, counts)
            if len(rates) == 2:  # not at the first reading
                percents.append(100 * rates["nr_throttled"] / (rates["nr_periods"] or 1))
        if percents:
            yield Reading("", "throttled_percent", max(percents))
