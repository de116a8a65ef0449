"""The block device behind a folder, as the kernel describes it in /sys/block/NAME/queue."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BlockDevice:
    """A whole disk, also where the folder is on a partition of it."""

    name: str
    read_ahead_kib: int
    scheduler: str
    """Empty for devices that only pass requests on."""
    counts: bool
    """Whether the kernel counts the device's requests (`iostats`)."""

    @property
    def queue(self) -> str:
        """The folder of its settings in /sys."""
        return f"/sys/block/{self.name}/queue"


def block_device(folder: str, mounted: str, sys: str = "/sys") -> BlockDevice | None:
    """Return the device that a folder is on; None when there is none. `mounted`: the mount's source (/dev/sda1)."""
    numbers = [os.stat(folder).st_dev]
    if mounted.startswith("/dev/") and os.path.exists(mounted):  # btrfs has device numbers of its own
        numbers.append(os.stat(mounted).st_rdev)
    for number in numbers:
        path = os.path.realpath(f"{sys}/dev/block/{os.major(number)}:{os.minor(number)}")
        whole = os.path.dirname(path) if os.path.exists(f"{path}/partition") else path
        queue = f"{whole}/queue"
        if os.path.isdir(queue):
            scheduler = _read(f"{queue}/scheduler")  # `none [mq-deadline] bfq`, or the only one
            return BlockDevice(
                name=os.path.basename(whole),
                read_ahead_kib=int(_read(f"{queue}/read_ahead_kb") or 0),
                scheduler=scheduler.split("[", 1)[1].split("]", 1)[0] if "[" in scheduler else scheduler,
                counts=_read(f"{queue}/iostats") != "0",
            )
    return None


def _read(path: str) -> str:
    try:
        with open(path) as lines:
            return lines.read().strip()
    except OSError:
        return ""
