"""Checks of the block device behind the dataset's folder: how far it reads ahead, and what orders its requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dlemu.cli.checks import Check
from dlemu.config.schema import Workload
from dlemu.emulator.environment import StorageFacts
from dlemu.metrics.demand import demand

_LITTLE_READ_AHEAD_KIB = 512
_LARGE_SAMPLE_BYTES = 1 << 20
_CHEAP_SCHEDULERS = ("none", "mq-deadline", "")
"""Those that hold no request back; the empty name is that of devices that only pass requests on."""


@dataclass(frozen=True, kw_only=True)
class BlockDevice:
    """What the kernel says of a device in /sys/block/NAME/queue."""

    name: str
    read_ahead_kib: int
    scheduler: str
    counts: bool
    """Requests are counted (`iostats`)."""


def checks(workload: Workload, storage: StorageFacts) -> Iterator[Check]:
    """Look at the device of a folder, as `describe_folder` tells it."""
    device = block_device(storage.folder, storage.device)
    if device is None:
        kind = storage.file_system or "an unknown file system"
        yield Check(name="device", level="ok", seen=f"no block device of this host lies behind {kind}")
        return
    yield check_read_ahead(device, workload)
    yield check_scheduler(device)


def block_device(folder: str, mounted: str, sys: str = "/sys") -> BlockDevice | None:
    """Return the device that a folder lies on; None when there is none (memory, a network, an overlay)."""
    numbers = [os.stat(folder).st_dev]
    if mounted.startswith("/dev/") and os.path.exists(mounted):  # btrfs has device numbers of its own
        numbers.append(os.stat(mounted).st_rdev)
    for number in numbers:
        path = os.path.realpath(f"{sys}/dev/block/{os.major(number)}:{os.minor(number)}")
        whole = os.path.dirname(path) if os.path.exists(f"{path}/partition") else path
        if os.path.isdir(f"{whole}/queue"):
            queue = f"{whole}/queue"
            return BlockDevice(
                name=os.path.basename(whole),
                read_ahead_kib=int(_read(f"{queue}/read_ahead_kb") or 0),
                scheduler=_active(_read(f"{queue}/scheduler")),
                counts=_read(f"{queue}/iostats") != "0",
            )
    return None


def check_read_ahead(device: BlockDevice, workload: Workload) -> Check:
    """Look at the read-ahead, which cuts up what is read through the page cache."""
    seen = f"{device.name} reads {device.read_ahead_kib:,} KiB ahead"
    size = demand(workload.model.name, workload).sample_bytes
    if device.read_ahead_kib < _LITTLE_READ_AHEAD_KIB and size >= _LARGE_SAMPLE_BYTES and not workload.reader.odirect:
        advice = f"reader.odirect=true, or as root: echo 4096 > /sys/block/{device.name}/queue/read_ahead_kb"
        wanted = f"{_LITTLE_READ_AHEAD_KIB} KiB or more for samples of {size / 1e6:.1f} MB through the page cache"
        return Check(name="read ahead", level="warn", seen=seen, wanted=wanted, advice=advice)
    return Check(name="read ahead", level="ok", seen=seen)


def check_scheduler(device: BlockDevice) -> Check:
    """Look at what orders the requests, and whether they are counted."""
    seen = f"{device.name}: {device.scheduler or 'no scheduler'}" + ("" if device.counts else ", iostats off")
    queue = f"/sys/block/{device.name}/queue"
    if not device.counts:
        advice = f"as root: echo 1 > {queue}/iostats; without it nothing can be seen of the device"
        return Check(name="scheduler", level="warn", seen=seen, wanted="requests counted", advice=advice)
    if device.scheduler not in _CHEAP_SCHEDULERS:
        advice = f"as root: echo none > {queue}/scheduler, or mq-deadline for a disk that turns"
        return Check(name="scheduler", level="warn", seen=seen, wanted="none or mq-deadline", advice=advice)
    return Check(name="scheduler", level="ok", seen=seen)


def _active(text: str) -> str:
    """Return the name in brackets of `none [mq-deadline] bfq`, or the only one."""
    return text.split("[", 1)[1].split("]", 1)[0] if "[" in text else text


def _read(path: str) -> str:
    try:
        with open(path) as lines:
            return lines.read().strip()
    except OSError:
        return ""
