"""Traffic of network file systems, which have no block device on this host: the counters of NFS and Lustre clients.

NFS: the lines `bytes:` and `READ:` of /proc/self/mountstats, as nfsiostat(8) of nfs-utils reads them. Lustre:
`read_bytes` and `write_bytes` in the `stats` file of llite, its client (https://doc.lustre.org, "Client Statistics").
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from datagen.withheld import printable
from dlemu.telemetry._devices import Mount, mount_of, mounts
from dlemu.telemetry.probe_base import (
    AbsentError,
    Counters,
    DeviceFacts,
    ProbeBase,
    Rates,
    Reading,
    Scope,
    readings,
)

_NFS = ("nfs", "nfs4")
_READ, _WRITTEN = 4, 5  # columns of the line `bytes:`: bytes received from and sent to the server
_REQUESTS, _TOTAL_MS = 0, 7  # columns of an operation: requests, and their summed time from queueing to completion


class Probe(ProbeBase):
    """Reads the network mounts that the dataset is on. A Lustre client also counts reads served by its own cache."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        table = mounts(scope.proc)
        found = [mount_of(os.path.realpath(folder), table) for folder in scope.folders]
        mounted = {mount.point: mount for mount in found if mount is not None}
        self._nfs = {point: mount for point, mount in mounted.items() if mount.file_system in _NFS}
        self._lustre = {
            point: _lustre_stats(mount, scope) for point, mount in mounted.items() if mount.file_system == "lustre"
        }
        if not self._nfs and not self._lustre:
            raise AbsentError("")
        self._stats = Counters(f"{scope.proc}/self/mountstats") if self._nfs else None
        self._rates = Rates()
        self.devices = tuple(
            DeviceFacts(
                probe="filesystem",
                name=printable(point),
                kind=mounted[point].file_system,
                counted=point in self._nfs,  # it alone counts the bytes received from the server
                model=printable(mounted[point].source),
            )
            for point in (*self._nfs, *self._lustre)
        )

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the counters of each mount."""
        nfs = _nfs_counters(self._stats.text()) if self._stats is not None else {}
        counted = {point: nfs[point] for point in self._nfs if point in nfs}
        counted |= {point: _lustre_counters(counters.text()) for point, counters in self._lustre.items()}
        for point, counters in counted.items():
            rates = self._rates.per_second(point, now_ns, counters)
            if "mean_queue_depth" in rates and rates["reads_per_second"]:
                rates["mean_read_latency_ms"] = 1e3 * rates["mean_queue_depth"] / rates["reads_per_second"]
            yield from readings(point, rates)


def _nfs_counters(text: str) -> dict[str, dict[str, float]]:
    """Return the counters by mount point and metric; the last mount's if several have the same mount point."""
    counted = {}
    for part in text.split("\ndevice "):
        lines = part.splitlines()
        words = lines[0].removeprefix("device ").split() if lines else []
        if "on" not in words[:-1]:
            continue
        point = words[words.index("on") + 1]
        bytes_line, read_line = _columns(lines, "bytes:"), _columns(lines, "READ:")
        if bytes_line:
            counted[point] = _traffic(bytes_line[_READ], bytes_line[_WRITTEN])
            if read_line:
                counted[point]["reads_per_second"] = read_line[_REQUESTS]
                counted[point]["mean_queue_depth"] = read_line[_TOTAL_MS] / 1e3
    return counted


def _columns(lines: list[str], head: str) -> list[int]:
    columns = [words[1:] for words in map(str.split, lines) if words and words[0] == head]
    return [int(column) for column in columns[0]] if columns else []


def _lustre_stats(mount: Mount, scope: Scope) -> Counters:
    """Open the statistics of a Lustre mount; their folder is named FILE_SYSTEM-ID."""
    name = mount.source.rpartition(":/")[2].partition("/")[0]
    for root in (f"{scope.proc}/fs/lustre", f"{scope.sys}/kernel/debug/lustre"):
        for path in sorted(glob.glob(f"{root}/llite/{glob.escape(name)}-*/stats")):
            return Counters(path)
    point = printable(mount.point)
    raise AbsentError(f"telemetry: the statistics of the Lustre client for {point} can't be read; root may be able to")


def _lustre_counters(text: str) -> dict[str, float]:
    """Parse lines such as `read_bytes 12 samples [bytes] 4096 1048576 7340032`: the last number is the sum."""
    fields = {words[0]: words for words in map(str.split, text.splitlines()) if words}
    read, written = fields.get("read_bytes"), fields.get("write_bytes")
    traffic = _traffic(int(read[6]) if read else 0, int(written[6]) if written else 0)
    return traffic | {"reads_per_second": int(read[1]) if read else 0}


def _traffic(read_bytes: int, written_bytes: int) -> dict[str, float]:
    return {"read_mb_per_second": read_bytes / 1e6, "write_mb_per_second": written_bytes / 1e6}
