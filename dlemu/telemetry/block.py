"""Throughput, queue depth and latency of the block devices behind the dataset, from /sys/class/block/NAME/stat.

Columns: https://docs.kernel.org/block/stat.html and iostats.html. For each interval, the mean queue depth is the growth
of `time_in_queue` / elapsed time, and the mean read latency is the growth of `read ticks` / growth of `read I/Os`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.telemetry._devices import SECTOR_BYTES, device_stack, mounts
from dlemu.telemetry.probe_base import AbsentError, Counters, DeviceFacts, ProbeBase, Rates, Reading, Scope, readings

_BY_KIND = "reads", "merged_reads", "read_sectors", "read_ms", "writes", "merged_writes", "write_sectors", "write_ms"
_COLUMNS = *_BY_KIND, "in_flight", "busy_ms", "weighted_ms"
"""Columns of the stat file. `weighted_ms` is the documented `time_in_queue`: ms, times the requests in flight."""


class Probe(ProbeBase):
    """Reads every device under the dataset's folders: those of the file systems, and the devices below these."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        table = mounts(scope.proc)
        devices: dict[str, DeviceFacts] = {}
        notes: list[str] = []
        for folder in scope.folders:
            stack, why_none = device_stack(folder, table, scope.sys)
            if why_none and why_none not in notes:
                notes.append(why_none)
            devices.update({device.name: device for device in stack})
        if not devices:
            raise AbsentError("; ".join(notes))
        self.devices = tuple(devices.values())
        notes += [
            f"{name} does not count requests, so its figures are 0; as root: `echo 1 > /sys/block/{name}/queue/iostats`"
            for name, device in devices.items()
            if not device.requests_counted and device.kind != "partition"
        ]
        self.notes = tuple(notes)
        self._stats = {name: Counters(f"{scope.sys}/class/block/{name}/stat") for name in devices}
        self._rates = Rates()

    def read(self, now_ns: int) -> Iterator[Reading]:
        for name, stat in self._stats.items():
            counters = dict(zip(_COLUMNS, map(int, stat.text().split()), strict=False))  # newer kernels have more
            yield Reading(name, "in_flight", counters.pop("in_flight"))  # a gauge, so it has no rate
            if rates := self._rates.per_second(name, now_ns, counters):
                yield from readings(name, _metrics(rates))


def _metrics(rates: dict[str, float]) -> dict[str, float]:
    """Return a device's metrics from its counters' rates; mean latencies and sizes only if there were such requests."""
    reads, writes, read_bytes = rates["reads"], rates["writes"], rates["read_sectors"] * SECTOR_BYTES
    metrics = {
        "reads_per_second": reads,
        "read_mb_per_second": read_bytes / 1e6,
        "writes_per_second": writes,
        "write_mb_per_second": rates["write_sectors"] * SECTOR_BYTES / 1e6,
        "mean_queue_depth": rates["weighted_ms"] / 1000,  # with one request always in flight, it grows by 1000 ms/s
        "busy_percent": min(100.0, rates["busy_ms"] / 10),  # 10 ms/s are 1 %
    }
    if reads:
        metrics |= {"mean_read_latency_ms": rates["read_ms"] / reads, "mean_read_kib": read_bytes / 1024 / reads}
    if writes:
        metrics["mean_write_latency_ms"] = rates["write_ms"] / writes
    return metrics
