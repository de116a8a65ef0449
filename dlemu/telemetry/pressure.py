"""Pressure stall information: the percentage of time in which tasks waited for CPU, I/O or memory.

`some`: at least one task waited; `full`: all non-idle tasks waited at once. https://docs.kernel.org/accounting/psi.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Rates, Reading, Scope

_RESOURCES = ("cpu", "io", "memory")
_TOTAL = re.compile(r"^(some|full) .*total=(\d+)", re.MULTILINE)


class Probe(ProbeBase):
    """Reads the pressure on the whole host."""

    def __init__(self, scope: Scope) -> None:
        self._files = {name: Counters(f"{scope.proc}/pressure/{name}") for name in _RESOURCES}
        self._rates = Rates()

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the percentages since the last reading."""
        for name, counters in self._files.items():
            totals_us = dict(_TOTAL.findall(counters.text()))
            passed = self._rates.since_last(name, now_ns, [int(total) for total in totals_us.values()])
            if passed is not None:
                for kind, grown_us in zip(totals_us, passed[1], strict=True):
                    yield Reading("", f"{name}_{kind}_percent", min(100.0, grown_us / 1e4 / passed[0]))
