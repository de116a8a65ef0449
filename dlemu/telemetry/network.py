"""Traffic of network interfaces, from /proc/net/dev, which does not count RDMA."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Rates, Reading, Scope, read_text, readings

_RECEIVED, _SENT = 0, 8  # columns of /proc/net/dev: bytes
_MEGABITS_PER_MB = 8  # the kernel reports the speed of a link in megabits per second


class Probe(ProbeBase):
    """Reads all interfaces, including `lo`, that have had any traffic since the host started."""

    def __init__(self, scope: Scope) -> None:
        self._interfaces, self._rates = Counters(f"{scope.proc}/self/net/dev"), Rates()
        speeds = {path.split(os.sep)[-2]: read_text(path) for path in glob.glob(f"{scope.sys}/class/net/*/speed")}
        # The speed of a link holds in each direction. Virtual links have none: the file is unreadable, or says -1 or 0.
        megabits = {name: int(speed) for name, speed in speeds.items() if speed.isdecimal() and int(speed)}
        self._links = {name: {"link_mb_per_second": speed / _MEGABITS_PER_MB} for name, speed in megabits.items()}

    def read(self, now_ns: int) -> Iterator[Reading]:
        for line in self._interfaces.text().splitlines()[2:]:
            name, _, columns = line.partition(":")
            source, fields = name.strip(), columns.split()
            received, sent = int(fields[_RECEIVED]), int(fields[_SENT])
            counters = {"received_mb_per_second": received / 1e6, "sent_mb_per_second": sent / 1e6}
            rates = self._rates.per_second(source, now_ns, counters)
            if rates and (received or sent):
                yield from readings(source, rates | self._links.get(source, {}))
