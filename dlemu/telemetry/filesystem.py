"""Traffic of NFS mounts, which have no block device on this host, from the counters of the NFS client.

The counters are in the lines `bytes:` and `READ:` of /proc/self/mountstats, as nfsiostat(8) of nfs-utils reads them.
Lustre's counters are not read, because they include reads that the client's own cache served.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from datagen.withheld import printable
from dlemu.telemetry._devices import mount_of, mounts, unescaped
from dlemu.telemetry.probe_base import AbsentError, Counters, DeviceFacts, ProbeBase, Rates, Reading, Scope, readings

_NFS = ("nfs", "nfs4")
_READ, _WRITTEN = 4, 5  # columns of the line `bytes:`: bytes received from the server, and sent to it
_REQUESTS, _TOTAL_MS = 0, 7  # columns of an operation: requests, and their total time from queueing to completion


class Probe(ProbeBase):
    """Reads the NFS mounts that hold the dataset."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        table = mounts(scope.proc)
        folder_mounts = [mount_of(os.path.realpath(folder), table) for folder in scope.folders]
        self._mounts = {mount.point: mount for mount in folder_mounts if mount and mount.file_system in _NFS}
        if not self._mounts:
            raise AbsentError("")  # no note: only NFS has these counters
        self._stats, self._rates = Counters(f"{scope.proc}/self/mountstats"), Rates()
        self.devices = tuple(
            DeviceFacts(
                probe="filesystem",
                name=printable(point),
                kind=mount.file_system,
                counted=True,
                model=printable(mount.source),
            )
            for point, mount in self._mounts.items()
        )

    def read(self, now_ns: int) -> Iterator[Reading]:
        for point, counters in _nfs_counters(self._stats.text()).items():
            if point not in self._mounts:
                continue
            rates = self._rates.per_second(point, now_ns, counters)
            if "mean_queue_depth" in rates and rates["reads_per_second"]:
                rates["mean_read_latency_ms"] = 1e3 * rates["mean_queue_depth"] / rates["reads_per_second"]
            yield from readings(printable(point), rates)


def _nfs_counters(text: str) -> dict[str, dict[str, float]]:
    """Return the counters as {mount point: {metric: value}}; of several mounts at one point, those of the last.

    The section of a mount begins with `device server:/export mounted on /mnt/nfs with fstype nfs4 statvers=1.1`.
    """
    counters: dict[str, dict[str, float]] = {}
    for section in text.split("\ndevice "):
        head, *lines = section.split("\n")
        point = re.search(r" mounted on (\S+) with ", head)
        columns = {words[0]: words[1:] for words in map(str.split, lines) if words}
        if point is None or "bytes:" not in columns:
            continue
        traffic, reads = columns["bytes:"], columns.get("READ:")
        metrics = {"read_mb_per_second": int(traffic[_READ]) / 1e6, "write_mb_per_second": int(traffic[_WRITTEN]) / 1e6}
        if reads:
            metrics["reads_per_second"] = int(reads[_REQUESTS])
            metrics["mean_queue_depth"] = int(reads[_TOTAL_MS]) / 1000
        counters[unescaped(point[1])] = metrics
    return counters
