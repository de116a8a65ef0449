"""Traffic of network interfaces (/proc/net/dev) and InfiniBand ports, as interfaces do not count RDMA.

InfiniBand's counters: sysfs-class-infiniband in https://docs.kernel.org/admin-guide/abi.html.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from dlemu.telemetry.probe_base import AbsentError, Counters, ProbeBase, Rates, Reading, Scope, read_text, readings

_RECEIVED, _SENT = 0, 8  # columns of /proc/net/dev: bytes
_PORT_UNIT_BYTES = 4  # InfiniBand's port_rcv_data and port_xmit_data count words of 4 bytes
_MEGABITS_PER_MB = 8  # the kernel reports the speed of a link in megabits per second


class Probe(ProbeBase):
    """Reads interfaces, `lo` included, and ports, unless they have carried nothing since the host started."""

    def __init__(self, scope: Scope) -> None:
        self._interfaces, self._rates = Counters(f"{scope.proc}/self/net/dev"), Rates()
        self._ports = dict(_ports(f"{scope.sys}/class/infiniband"))
        self._links = dict(_links(f"{scope.sys}/class/net"))

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the rates since the last reading."""
        for source, received, sent in (*self._interface_bytes(), *self._port_bytes()):
            counters = {"received_mb_per_second": received / 1e6, "sent_mb_per_second": sent / 1e6}
            rates = self._rates.per_second(source, now_ns, counters)
            if rates and (received or sent):
                yield from readings(source, rates | self._links.get(source, {}))

    def _interface_bytes(self) -> Iterator[tuple[str, int, int]]:
        for line in self._interfaces.text().splitlines()[2:]:
            name, _, columns = line.partition(":")
            fields = columns.split()
            yield name.strip(), int(fields[_RECEIVED]), int(fields[_SENT])

    def _port_bytes(self) -> Iterator[tuple[str, int, int]]:
        for source, (received, sent) in self._ports.items():
            yield source, _PORT_UNIT_BYTES * int(received.text()), _PORT_UNIT_BYTES * int(sent.text())


def _links(folder: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each interface with its link's speed in each direction, where it is known (not of virtual links)."""
    for path in glob.glob(f"{folder}/*/speed"):
        megabits = read_text(path)
        if megabits.isdecimal() and int(megabits):
            yield path.split(os.sep)[-2], {"link_mb_per_second": int(megabits) / _MEGABITS_PER_MB}


def _ports(folder: str) -> Iterator[tuple[str, tuple[Counters, Counters]]]:
    """Yield the name (such as mlx5_0/1) and the counters (received, sent) of each readable port."""
    for counters in sorted(glob.glob(f"{folder}/*/ports/*/counters")):
        parts = counters.split(os.sep)
        try:
            files = Counters(f"{counters}/port_rcv_data"), Counters(f"{counters}/port_xmit_data")
        except AbsentError:
            continue
        yield f"{parts[-4]}/{parts[-2]}", files
