"""What the clients of network file systems count where there is no block device: NFS and Lustre.

NFS: /proc/self/mountstats, its `bytes:` line and the READ line of the operations (nfsiostat(8) of nfs-utils reads the
same). Lustre: `read_bytes` and `write_bytes` of llite's stats (https://doc.lustre.org, "Client Statistics").
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from typing import NamedTuple

from datagen.withheld import printable
from dlemu.telemetry._devices import Mount, mount_of, mounts
from dlemu.telemetry.probe_base import AbsentError, Counters, Description, DeviceFacts, ProbeBase, Rates, Reading, Scope

_NFS = ("nfs", "nfs4")
_READ, _WRITTEN = 4, 5  # columns of NFS's bytes line: what came from and went to the server
_REQUESTS, _WHOLE_MS = 0, 7  # columns of an operation: how many, and their time from queueing to the end


class Counted(NamedTuple):
    """A client's counters of one mount; what it does not count is None."""

    read_bytes: int
    written_bytes: int
    reads: int | None = None
    read_ms: int | None = None
    """Time of all reads, from the request to its end."""


class Probe(ProbeBase):
    """The network file systems that the dataset is on. What a Lustre client counts includes its own cache."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        table = mounts(scope.proc)
        places = [mount_of(os.path.realpath(folder), table) for folder in scope.folders]
        self._mounts = {mount.point: mount for mount in places if mount is not None}
        self._nfs = {point: mount for point, mount in self._mounts.items() if mount.file_system in _NFS}
        self._lustre = {
            point: _llite(mount, scope) for point, mount in self._mounts.items() if mount.file_system == "lustre"
        }
        if not self._nfs and not self._lustre:
            raise AbsentError("")
        self._stats = Counters(f"{scope.proc}/self/mountstats") if self._nfs else None
        self._rates = Rates()

    def describe(self) -> Description:
        """Return the mounts; NFS counts what came from the server, so its bytes are the dataset's."""
        devices = tuple(
            DeviceFacts(
                probe="filesystem",
                name=printable(point),
                kind=self._mounts[point].file_system,
                counted=point in self._nfs,
                model=printable(self._mounts[point].source),
            )
            for point in (*self._nfs, *self._lustre)
        )
        return Description(devices=devices)

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read each mount."""
        nfs = _nfs_counters(self._stats.text()) if self._stats is not None else {}
        counted = {point: nfs[point] for point in self._nfs if point in nfs}
        counted |= {point: _lustre_counters(counters.text()) for point, counters in self._lustre.items()}
        for point, counters in counted.items():
            known = [counter for counter in counters if counter is not None]
            passed = self._rates.since_last(point, now_ns, known)
            if passed is not None:
                yield from _rates(point, *passed)


def _rates(point: str, seconds: float, grown: list[float]) -> Iterator[Reading]:
    yield Reading(point, "read_mb_per_second", grown[0] / 1e6 / seconds)
    yield Reading(point, "write_mb_per_second", grown[1] / 1e6 / seconds)
    if len(grown) > 2:
        yield Reading(point, "reads_per_second", grown[2] / seconds)
    if len(grown) > 3:
        yield Reading(point, "mean_queue_depth", grown[3] / 1e3 / seconds)
        if grown[2]:
            yield Reading(point, "mean_read_latency_ms", grown[3] / grown[2])


def _nfs_counters(text: str) -> dict[str, Counted]:
    """Return the counters by mount point; of a point mounted twice the last."""
    counted = {}
    for part in text.split("\ndevice "):
        lines = part.splitlines()
        words = lines[0].removeprefix("device ").split() if lines else []
        if "on" not in words[:-1]:
            continue
        point = words[words.index("on") + 1]
        bytes_line, read_line = _columns(lines, "bytes:"), _columns(lines, "READ:")
        if bytes_line:
            reads = (read_line[_REQUESTS], read_line[_WHOLE_MS]) if read_line else (None, None)
            counted[point] = Counted(bytes_line[_READ], bytes_line[_WRITTEN], *reads)
    return counted


def _columns(lines: list[str], head: str) -> list[int]:
    columns = [words[1:] for words in map(str.split, lines) if words and words[0] == head]
    return [int(column) for column in columns[0]] if columns else []


def _llite(mount: Mount, scope: Scope) -> Counters:
    """Open the statistics of a Lustre mount: its file system's name is in their folder's."""
    name = mount.source.rpartition(":/")[2].partition("/")[0]
    for root in (f"{scope.proc}/fs/lustre", f"{scope.sys}/kernel/debug/lustre"):
        for path in sorted(glob.glob(f"{root}/llite/{glob.escape(name)}-*/stats")):
            return Counters(path)
    point = printable(mount.point)
    raise AbsentError(f"telemetry: no statistics of Lustre's client for {point} can be read (root may see them)")


def _lustre_counters(text: str) -> Counted:
    """Parse lines such as `read_bytes 12 samples [bytes] 4096 1048576 7340032`: the last one is the sum."""
    fields = {words[0]: words for words in map(str.split, text.splitlines()) if words}
    read, written = fields.get("read_bytes"), fields.get("write_bytes")
    return Counted(int(read[6]) if read else 0, int(written[6]) if written else 0, int(read[1]) if read else 0)
