"""Traffic of network interfaces (/proc/net/dev) and InfiniBand ports, as interfaces do not count RDMA.

InfiniBand's counters: sysfs-class-infiniband in https://docs.kernel.org/admin-guide/abi.html.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator

from dlemu.telemetry.probe_base import AbsentError, Counters, ProbeBase, Rates, Reading, Scope

_RECEIVED, _SENT = 0, 8  # columns of /proc/net/dev: bytes
_PORT_UNIT_BYTES = 4  # InfiniBand's port_rcv_data and port_xmit_data count words of 4 bytes
_MEGABITS_PER_MB = 8  # the kernel reports the speed of a link in megabits per second


class Probe(ProbeBase):
    """Reads interfaces, `lo` included, and ports, unless they have carried nothing since the host started."""

    def __init__(self, scope: Scope) -> None:
        self._interfaces, self._rates = Counters(f"{scope.proc}/self/net/dev"), Rates()
        self._ports = dict(_ports(f"{scope.sys}/class/infiniband"))
        self._sys = scope.sys
        self._links: dict[str, float | None] = {}

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the rates since the last reading."""
        for source, received, sent in (*self._interface_bytes(), *self._port_bytes()):
            passed = self._rates.since_last(source, now_ns, [received, sent])
            if passed is not None and (received or sent):
                seconds, grown = passed
                yield Reading(source, "received_mb_per_second", grown[0] / 1e6 / seconds)
                yield Reading(source, "sent_mb_per_second", grown[1] / 1e6 / seconds)
                link = self._link_mb_per_second(source)
                if link is not None:
                    yield Reading(source, "link_mb_per_second", link)

    def _link_mb_per_second(self, source: str) -> float | None:
        """Return a link's speed in each direction, looked up once; None if unknown (loopback, virtual links)."""
        if source not in self._links:
            self._links[source] = None
            with contextlib.suppress(OSError, ValueError), open(f"{self._sys}/class/net/{source}/speed") as line:
                megabits = int(line.read())
                self._links[source] = megabits / _MEGABITS_PER_MB if megabits > 0 else None
        return self._links[source]

    def _interface_bytes(self) -> Iterator[tuple[str, int, int]]:
        for line in self._interfaces.text().splitlines()[2:]:
            name, _, columns = line.partition(":")
            fields = columns.split()
            yield name.strip(), int(fields[_RECEIVED]), int(fields[_SENT])

    def _port_bytes(self) -> Iterator[tuple[str, int, int]]:
        for source, (received, sent) in self._ports.items():
            yield source, _PORT_UNIT_BYTES * int(received.text()), _PORT_UNIT_BYTES * int(sent.text())


def _ports(folder: str) -> Iterator[tuple[str, tuple[Counters, Counters]]]:
    """Yield the name (such as mlx5_0/1) and the counters (received, sent) of each readable port."""
    for counters in sorted(glob.glob(f"{folder}/*/ports/*/counters")):
        parts = counters.split(os.sep)
        try:
            files = Counters(f"{counters}/port_rcv_data"), Counters(f"{counters}/port_xmit_data")
        except AbsentError:
            continue
        yield f"{parts[-4]}/{parts[-2]}", files
