"""Finds the block devices behind a folder and those that they are built on: of partitions, md, dm, NVMe paths, btrfs.

Sources: sysfs-block (`slaves`, `partition`) and proc(5) (`mountinfo`), https://docs.kernel.org.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from datagen.withheld import printable
from dlemu.telemetry.probe_base import DeviceFacts, read_text

SECTOR_BYTES = 512  # unit of sizes in sysfs, for any sector size of the device
_NO_COUNTERS = "there are no device counters, only the bytes that the application read"
_WHY_NO_DEVICE = {  # file system -> why it has no block device to count
    **dict.fromkeys(("tmpfs", "ramfs"), f"memory; {_NO_COUNTERS}"),
    **dict.fromkeys(("nfs", "nfs4"), "the counters of its client are used in place of a device's"),
    "lustre": "its client counts requests, cache hits included, so it is not known what the servers delivered",
}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A line of mountinfo."""

    point: str
    file_system: str
    source: str
    device_number: str  # major:minor


def mounts(proc: str = "/proc") -> list[Mount]:
    """Return the mounts that this process sees, in the order of mounting.

    Example of a line: `36 35 98:0 / /mnt/data rw,noatime - ext4 /dev/sda1 rw,errors=continue`.
    """
    table = []
    with open(f"{proc}/self/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            mount_fields, _, file_system_fields = line.rstrip("\n").partition(" - ")
            _, _, number, _, point, *_ = mount_fields.split()
            file_system, source, _ = (unescaped(field) for field in file_system_fields.split(" ", 2))
            table.append(Mount(point=unescaped(point), file_system=file_system, source=source, device_number=number))
    return table


def mount_of(path: str, table: list[Mount]) -> Mount | None:
    """Return the mount that holds a path: that with the longest mount point above it, and among equals the latest."""
    mounts_above = [mount for mount in table if PurePath(path).is_relative_to(mount.point)]
    return max(reversed(mounts_above), key=lambda mount: len(mount.point), default=None)


def device_stack(folder: str, table: list[Mount], sys: str = "/sys") -> tuple[list[DeviceFacts], str]:
    """Return the devices under a folder, or the reason why there are none.

    Example: for a file system on md0, which is built on sda1 and sdb1, the devices are md0, sda1, sda, sdb1 and sdb.
    Only the file system's own device, md0, is `counted`. Of NVMe multipath, that is the partition, the device or its
    paths: the first that has counted anything since boot.
    """
    path = os.path.realpath(folder)
    mount = mount_of(path, table)
    if mount is None:
        return [], printable(f"no mount point is known above {path}")
    tops = _top_devices(mount, sys)
    if not tops:
        why = _WHY_NO_DEVICE.get(mount.file_system, f"it names no block device of this host; {_NO_COUNTERS}")
        return [], printable(f"{path} is on {mount.file_system} ({mount.source}): {why}")
    stack: dict[str, DeviceFacts] = {}
    counted: set[str] = set()
    for top in tops:
        below = {device.name: device for device in _stack(top, sys)}
        stack |= below
        paths = [name for name, device in below.items() if device.kind == "nvme path"]
        stats = {name: read_text(f"{sys}/class/block/{name}/stat").split() for name in below if name not in paths}
        # Columns 0 and 4: reads and writes since boot
        counting = [name for name, stat in stats.items() if any(map(int, stat[0:5:4]))]
        is_multipath = paths and below[top].kind in ("partition", "disk")
        counted.update(counting[:1] or paths if is_multipath else [top])
    return [replace(device, counted=device.name in counted) for device in stack.values()], ""


def unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), text)


def _top_devices(mount: Mount, sys: str) -> list[str]:
    """Return the names of a file system's own devices. A btrfs may have several, and its number is none of theirs."""
    if mount.file_system == "btrfs":
        member = os.path.basename(os.path.realpath(mount.source))
        members = [_list_names(f"{sys}/fs/btrfs/{name}/devices") for name in _list_names(f"{sys}/fs/btrfs")]
        return next((names for names in members if member in names), [])
    link = f"{sys}/dev/block/{mount.device_number}"
    return [os.path.basename(os.path.realpath(link))] if os.path.exists(link) else []


def _stack(name: str, sys: str) -> Iterator[DeviceFacts]:
    """Yield a device, given its name in /sys/class/block, and the devices below it; a loop device has none below."""
    folder = disk = f"{sys}/class/block/{name}"
    kind = next((kind for kind in ("partition", "md", "dm", "loop") if os.path.exists(f"{folder}/{kind}")), "disk")
    if kind == "partition":
        disk = os.path.dirname(os.path.realpath(folder))
        below = [os.path.basename(disk)]
    else:
        below = _list_names(f"{folder}/slaves") or _nvme_paths(name, sys)
    if kind == "disk" and re.fullmatch(r"nvme\d+c\d+n\d+", name):
        kind = "nvme path"
    yield DeviceFacts(
        probe="block",
        name=name,
        kind=kind,
        below=tuple(below),
        counted=False,
        size_bytes=_read_number(f"{folder}/size", SECTOR_BYTES),
        model=read_text(f"{disk}/device/model") or None,
        read_ahead_bytes=_read_number(f"{disk}/queue/read_ahead_kb", 1024),
        requests_counted=read_text(f"{disk}/queue/iostats") != "0",
    )
    for name_below in below:
        yield from _stack(name_below, sys)


def _nvme_paths(name: str, sys: str) -> list[str]:
    """Return the paths of an NVMe multipath device, such as nvme0c1n1 of nvme0n1; empty for other devices."""
    device = re.fullmatch(r"nvme(\d+)n(\d+)", name)
    pattern = rf"nvme{device[1]}c\d+n{device[2]}" if device else ""
    return [path for path in _list_names(f"{sys}/class/block") if re.fullmatch(pattern, path)]


def _read_number(path: str, unit: int) -> int | None:
    text = read_text(path)
    return int(text) * unit if text.isdecimal() else None


def _list_names(folder: str) -> list[str]:
    """Return the sorted names in a folder; empty if it can't be read."""
    return sorted(os.path.basename(path) for path in glob.glob(f"{glob.escape(folder)}/*"))
