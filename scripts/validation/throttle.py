"""Limits a control group's (cgroup's) use of a block device, or of CPU time, by the kernel's throttles.

cgroup v1: blkio.throttle.*_device (Documentation/admin-guide/cgroup-v1/blkio-controller.rst); at limits of 50 to 500
MB/s and 500 to 10000 reads/s, the rates were within 1 % of them. cgroup v2: io.max
(Documentation/admin-guide/cgroup-v2.rst). The throttle works in slices of about 100 ms, within which reads come in
bursts. If both versions are mounted, the controller is in one of them. In v2, `+io` stays enabled in the root group.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from datagen.errors import UserError
from validation.janitor import Traces, cleaned

MOUNTS = "/proc/self/mounts"
CPU_PERIOD_US = 100_000
CPU_V1, CPU_V2 = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Limits of a drive's speed; 0 is no limit."""

    read_bytes_per_second: int = 0
    reads_per_second: int = 0
    write_bytes_per_second: int = 0
    """Limits direct writes only: the kernel itself writes pages of the page cache, outside of any group."""


@dataclass(frozen=True)
class Root:
    """The folder in which groups that can limit block devices are made."""

    folder: str
    version: Literal[1, 2]


class Throttle:
    """A control group named `name` under a root, which `make` makes, and the janitor removes."""

    def __init__(self, name: str, root: Root) -> None:
        self.cgroup = os.path.join(root.folder, name)
        self._v2 = root.version == 2

    def make(self) -> None:
        """Make the group, without limits. Raises UserError if that is not permitted."""
        parent = os.path.dirname(self.cgroup)
        try:
            if self._v2:
                _write(os.path.join(parent, "cgroup.subtree_control"), "+io")
            os.mkdir(self.cgroup)
        except OSError as error:
            raise UserError(
                f"no control group can be made in {parent} ({error.strerror}): in a container its own groups are not "
                "its to change; run on the host itself, as root"
            ) from None

    def limit(self, device: str, speed: Speed) -> None:
        """Limit reads and writes of `device`, given as MAJOR:MINOR."""
        if self._v2:
            bytes_limit, reads_limit = speed.read_bytes_per_second or "max", speed.reads_per_second or "max"
            limits = f"rbps={bytes_limit} riops={reads_limit} wbps={speed.write_bytes_per_second or 'max'}"
            _write(os.path.join(self.cgroup, "io.max"), f"{device} {limits}")
            return
        _write(os.path.join(self.cgroup, "blkio.throttle.read_bps_device"), f"{device} {speed.read_bytes_per_second}")
        _write(os.path.join(self.cgroup, "blkio.throttle.read_iops_device"), f"{device} {speed.reads_per_second}")
        _write(os.path.join(self.cgroup, "blkio.throttle.write_bps_device"), f"{device} {speed.write_bytes_per_second}")

    def command(self, argv: list[str]) -> list[str]:
        """Return the command line that runs `argv`, and all it starts, in the group."""
        return in_group(self.cgroup, argv)


def in_group(cgroup: str, argv: list[str]) -> list[str]:
    """Return the command line that runs `argv`, and all it starts, in a control group."""
    return ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh", *argv]


def throttle_root(mounts: str = MOUNTS) -> Root | None:
    """Return the root of groups that can limit block devices; None if this kernel has no throttle."""
    with open(mounts) as lines:
        mounted = [line.split()[1:4] for line in lines]
    for folder, kind, options in mounted:
        throttles = os.path.join(folder, "blkio.throttle.read_bps_device")
        if kind == "cgroup" and "blkio" in options.split(",") and os.path.exists(throttles):
            return Root(folder, 1)
    for folder, kind, _ in mounted:
        if kind == "cgroup2" and "io" in _words(os.path.join(folder, "cgroup.controllers")):
            return Root(folder, 2)
    return None


def make_throttle(name: str) -> Throttle:
    """Return a throttle, whose group is not made yet; raises UserError if this kernel has none."""
    root = throttle_root()
    if root is None:
        raise UserError("this kernel has neither cgroup v1's blkio.throttle nor cgroup v2's io controller")
    return Throttle(name, root)


@contextlib.contextmanager
def cpu_quota(cores: float) -> Iterator[str]:
    """Make a control group with a CPU limit, like a container's; yield its folder, and remove it at the end.

    Documentation/scheduler/sched-bwc.rst, cgroup-v2.rst.

    Raises:
        UserError: this kernel or container does not permit such a group.
        DlemuError: the group could not be removed.
    """
    is_v1, quota_us = os.path.exists(os.path.join(CPU_V1, "cpu.cfs_quota_us")), round(cores * CPU_PERIOD_US)
    cgroup = os.path.join(CPU_V1 if is_v1 else CPU_V2, f"dlemu-quota-{os.getpid()}-{os.urandom(4).hex()}")
    values = {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    with cleaned(Traces(folder="", mount="", cgroup=cgroup)):
        try:
            os.mkdir(cgroup)
            for name, value in values.items() if is_v1 else [("cpu.max", f"{quota_us} {CPU_PERIOD_US}")]:
                _write(os.path.join(cgroup, name), value)
        except OSError as error:
            message = f"no control group with a CPU limit can be made ({cgroup}): {error.strerror}"
            raise UserError(message) from None
        yield cgroup


def _words(path: str) -> list[str]:
    with open(path) as line:
        return line.read().split()


def _write(path: str, line: str) -> None:
    with open(path, "w") as file:
        file.write(line)
