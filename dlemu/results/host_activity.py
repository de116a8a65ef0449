"""Activity of a run's hosts and devices in windows of time, computed from their telemetry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dlemu.metrics.rates import Windows, mean_within
from dlemu.telemetry import DeviceFacts, HostTelemetry


def devices_of(telemetry: Sequence[HostTelemetry]) -> Iterator[tuple[HostTelemetry, DeviceFacts]]:
    """Yield each device with its host. Containers of one machine list the same device: only the first is `counted`."""
    counted = set()
    for host in telemetry:
        for device in host.devices:
            key = host.boot_id, device.name
            yield host, replace(device, counted=device.counted and key not in counted)
            if device.counted:
                counted.add(key)


class HostActivity:
    """Telemetry of a run's hosts, averaged over windows of time that each host has on its own clock."""

    def __init__(self, hosts: Sequence[tuple[HostTelemetry, Windows]]) -> None:
        self._hosts = hosts

    def means(self, probe: str, metric: str) -> list[float]:
        """Return the mean of a metric of each host; NaN for one that did not record it."""
        return [mean_within(*host.readings(probe, "", metric), windows) for host, windows in self._hosts]

    @property
    def busy_percents(self) -> list[float]:
        """CPU utilisation of each host, %: all time but idle and iowait; steal time counts as busy."""
        idle_and_iowait = zip(self.means("cpu", "idle_percent"), self.means("cpu", "iowait_percent"), strict=True)
        return [100.0 - sum(unused) for unused in idle_and_iowait]

    def link_percent(self, flow: str) -> float | None:
        """Return the use of the busiest link, %, by the metric `flow` (MB/s); None if no link's speed is known."""
        percents = []
        for host, windows in self._hosts:
            for link in host.sources("network"):
                _, speeds = host.readings("network", link, "link_mb_per_second")
                if len(speeds) and speeds[-1] > 0:
                    mb_per_second = mean_within(*host.readings("network", link, flow), windows)
                    percents.append(100 * mb_per_second / float(speeds[-1]))
        return highest(percents)

    @property
    def devices(self) -> Iterator[tuple[HostTelemetry, Windows, DeviceFacts]]:
        """The counted devices, each with its host and the host's windows of time."""
        windows_of = {host.node: windows for host, windows in self._hosts}
        for host, device in devices_of([host for host, _ in self._hosts]):
            if device.counted:
                yield host, windows_of[host.node], device

    def block_device_means(self, metric: str) -> list[float]:
        """Return the mean of a metric for each counted block device that has readings of it."""
        means = (
            mean_within(*host.readings("block", device.name, metric), windows)
            for host, windows, device in self.devices
            if device.probe == "block"
        )
        return [mean for mean in means if not math.isnan(mean)]


def highest(values: Iterable[float]) -> float | None:
    """Return the highest value, NaN ignored; None if every value is NaN."""
    return max((value for value in values if not math.isnan(value)), default=None)
