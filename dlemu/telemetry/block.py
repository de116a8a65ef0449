"""Throughput, queue depth and latency of the block devices behind the dataset, from /sys/class/block/NAME/stat.

Columns and formulas: https://docs.kernel.org/block/stat.html and iostats.html. Over an interval, mean queue depth is
the growth of `time_in_queue` / elapsed time, mean read latency the growth of `read ticks` / growth of `read I/Os`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dlemu.telemetry._devices import device_facts, device_stack, mounts
from dlemu.telemetry.probe_base import AbsentError, Description, ProbeBase, Rates, Reading, Scope

_SECTOR_BYTES = 512  # unit of the sector counts in sysfs, whatever the device's own block size
# columns of the stat file; _WEIGHTED_MS is `time_in_queue`: every millisecond counts once per request in flight
_READS, _READ_SECTORS, _READ_MS, _WRITES, _WRITE_SECTORS, _WRITE_MS = 0, 2, 3, 4, 6, 7
_IN_FLIGHT, _BUSY_MS, _WEIGHTED_MS = 8, 9, 10


class Probe(ProbeBase):
    """Reads every device below the dataset's folders: the file system's own and those that it is built on."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        table, devices = mounts(scope.proc), {}
        self._notes: list[str] = []
        for folder in scope.folders:
            under = device_stack(folder, table, scope.sys)
            self._notes += [note for note in under.notes if note not in self._notes]
            devices.update({device.name: device for device in under.devices})
        if not devices:
            raise AbsentError("; ".join(self._notes))
        self._facts = tuple(device_facts(device, scope.sys) for device in devices.values())
        self._stats = {name: os.open(f"{scope.sys}/class/block/{name}/stat", os.O_RDONLY) for name in devices}
        self._rates = Rates()

    def describe(self) -> Description:
        """Return the devices, and notes on missing or disabled counters."""
        uncounted = [facts.name for facts in self._facts if not facts.requests_counted]
        notes = [
            f"{name} does not count requests, so its figures are 0; as root: `echo 1 > /sys/block/{name}/queue/iostats`"
            for name in uncounted
        ]
        return Description(devices=self._facts, notes=(*self._notes, *notes))

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the counters of each device."""
        for name, stat in self._stats.items():
            counters = [int(field) for field in os.pread(stat, 512, 0).split()]
            yield Reading(name, "in_flight", counters[_IN_FLIGHT])
            counters[_IN_FLIGHT] = 0
            passed = self._rates.since_last(name, now_ns, counters)
            if passed is not None:
                yield from _rates(name, *passed)


def _rates(name: str, seconds: float, grown: list[float]) -> Iterator[Reading]:
    reads, writes = grown[_READS], grown[_WRITES]
    yield Reading(name, "reads_per_second", reads / seconds)
    yield Reading(name, "read_mb_per_second", grown[_READ_SECTORS] * _SECTOR_BYTES / 1e6 / seconds)
    yield Reading(name, "writes_per_second", writes / seconds)
    yield Reading(name, "write_mb_per_second", grown[_WRITE_SECTORS] * _SECTOR_BYTES / 1e6 / seconds)
    yield Reading(name, "mean_queue_depth", grown[_WEIGHTED_MS] / 1e3 / seconds)
    yield Reading(name, "busy_percent", min(100.0, grown[_BUSY_MS] / 10 / seconds))
    if reads:
        yield Reading(name, "mean_read_latency_ms", grown[_READ_MS] / reads)
        yield Reading(name, "mean_read_kib", grown[_READ_SECTORS] * _SECTOR_BYTES / 1024 / reads)
    if writes:
        yield Reading(name, "mean_write_latency_ms", grown[_WRITE_MS] / writes)
