"""Pressure stall information: percentages of the time in which tasks waited for CPU, I/O or memory.

`some`: at least one task waited; `full`: all non-idle tasks waited. See https://docs.kernel.org/accounting/psi.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Rates, Reading, Scope

_TOTAL = re.compile(r"^(some|full) .*total=(\d+)", re.MULTILINE)


class Probe(ProbeBase):
    """Reads the pressure of the whole host."""

    def __init__(self, scope: Scope) -> None:
        self._files = {name: Counters(f"{scope.proc}/pressure/{name}") for name in ("cpu", "io", "memory")}
        self._rates = Rates()

    def read(self, now_ns: int) -> Iterator[Reading]:
        totals_us = {
            f"{name}_{kind}_percent": int(total)
            for name, counters in self._files.items()
            for kind, total in _TOTAL.findall(counters.text())
        }
        for metric, us_per_second in self._rates.per_second("", now_ns, totals_us).items():
            # 10,000 us/s are 1 %. Totals are read slightly after `now_ns`: an interval of full stall can exceed 100 %
            yield Reading("", metric, min(100.0, us_per_second / 1e4))
