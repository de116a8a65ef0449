"""What the hosts' block devices did during a call: differences of /proc/diskstats, which mlpstorage v3.0 records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlemu.contrib.mlperf.audit.tolerant import all_known, mapping, number, text, value_at
from dlemu.contrib.mlperf.rules.training import GIB

_COUNTERS = ("sectors_read", "sectors_written", "time_doing_ios_ms")
_SECTOR_BYTES = 512  # unit of /proc/diskstats, whatever sectors the device has
_PARTITION = re.compile(r"^(?:(?:nvme\d+n\d+|mmcblk\d+)p\d+|[shv]d[a-z]+\d+)$")
_STACKED = re.compile(r"^(?:loop|ram|zram|sr|dm-|md)\d*")
"""Devices that pass their requests on to other devices, which are counted themselves."""


class DeviceWork(NamedTuple):
    """What one device did between the start and the end of a call."""

    read_gib: float
    written_gib: float
    busy_seconds: float

    @property
    def moved_gib(self) -> float:
        """What the device read and wrote."""
        return self.read_gib + self.written_gib


def device_work(metadata: Mapping[str, Any]) -> dict[str, DeviceWork]:
    """Return `host:device` -> its work, for devices whose counters the metadata have both at the start and at the end.

    Partitions and stacked devices are left out: the devices below them count their requests.
    """
    before = _counters(value_at(metadata, "cluster_snapshots.start.hosts"))
    after = _counters(value_at(metadata, "cluster_snapshots.end.hosts"))
    work = {}
    for device in before.keys() & after.keys():
        read, written, busy_ms = (end - start for start, end in zip(before[device], after[device], strict=True))
        work[device] = DeviceWork(read * _SECTOR_BYTES / GIB, written * _SECTOR_BYTES / GIB, busy_ms / 1e3)
    return work


def _counters(hosts: object) -> dict[str, list[float]]:
    """Return `host:device` -> sectors read, sectors written and busy milliseconds since the host booted."""
    counters = {}
    for host in map(mapping, hosts if isinstance(hosts, list) else ()):
        disks = host.get("disks")
        for disk in map(mapping, disks if isinstance(disks, list) else ()):
            name = text(disk.get("device_name"))
            values = all_known(number(disk.get(key)) for key in _COUNTERS)
            if name and values and not _PARTITION.match(name) and not _STACKED.match(name):
                counters[f"{host.get('hostname')}:{name}"] = values
    return counters
