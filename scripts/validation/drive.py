"""A drive of known speed: two loop devices on a file in memory, the kernel's throttle between them. Needs root.

The throttle delays requests before the device below it counts them. So the file system is on a second loop device,
above the throttle, whose counters (busy, queue depth, latency) include the delay, as those of a real drive do.

    with known_drive(Speed(read_bytes_per_second=200_000_000), size_bytes=2 << 30) as drive:
        ...make files in drive.folder: writing is not limited...
        drive.forget_cache()
        subprocess.run(drive.command(["dlemu", "train", ...]))     # only programs run by `command` are limited

A janitor process removes the drive when the block or its process ends, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from datagen.errors import UserError
from validation.janitor import Janitor, Traces, cleaned
from validation.throttle import Speed as Speed
from validation.throttle import Throttle, make_throttle, throttle_root

TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")

MEMORY = "/dev/shm"
"""Folder of the image: in memory, so that only the throttle is slow."""


class KnownDrive:
    """A mounted ext4 of known speed. Made by `known_drive`."""

    def __init__(self, folder: str, device: str, memory_device: str, throttle: Throttle, janitor: Janitor) -> None:
        self.folder = folder
        """Its mount point."""
        self.device = device
        """Its name in /sys/block."""
        with open(f"/sys/block/{os.path.basename(memory_device)}/dev") as line:
            self._limited = line.read().strip()
        self._throttle, self._janitor = throttle, janitor

    def set_speed(self, speed: Speed) -> None:
        """Change the limits; 0 lifts one."""
        self._throttle.limit(self._limited, speed)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv`, and all it starts, at the drive's speed."""
        return self._throttle.command(list(argv))

    def forget_cache(self) -> None:
        """Mount the drive anew, which empties its page cache. No file of it may be open."""
        self._janitor.run("umount", self.folder)
        self._janitor.run("mount", "-o", "noatime", f"/dev/{self.device}", self.folder)


def why_no_drive() -> str | None:
    """Return why no drive of known speed can be made on this host; None if one can."""
    if os.geteuid() != 0:
        return "a drive of known speed is made of a loop device and a control group, which needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"a drive of known speed is made by {', '.join(missing)}, which is not here (util-linux, e2fsprogs)"
    if not os.path.exists("/dev/loop-control"):
        return "there is no /dev/loop-control: this kernel has no loop devices"
    if throttle_root() is None:
        return "this kernel can't throttle: neither cgroup v1's blkio.throttle nor cgroup v2's io controller"
    return None


@contextlib.contextmanager
def known_drive(speed: Speed, *, size_bytes: int, memory: str = MEMORY) -> Iterator[KnownDrive]:
    """Make a drive, and at the end kill what runs on it and remove it. `memory` is the folder of its image.

    Raises:
        UserError: no drive can be made on this host, or `memory` has less than `size_bytes` free.
        DlemuError: a part of the drive could not be removed.
    """
    reason = why_no_drive()
    if reason:
        raise UserError(reason)
    _check_free_space(size_bytes, memory)
    name = f"dlemu-drive-{os.getpid()}-{os.urandom(4).hex()}"
    throttle = make_throttle(name)
    folder = os.path.join(tempfile.gettempdir(), name)
    mount, image = os.path.join(folder, "drive"), os.path.join(memory, f"{name}.img")
    with cleaned(Traces(folder=folder, mount=mount, image=image, cgroup=throttle.cgroup)) as janitor:
        os.makedirs(mount)
        device, memory_device = _make_devices(janitor, image, size_bytes)
        janitor.run("mount", "-o", "noatime", device, mount)
        throttle.make()
        drive = KnownDrive(mount, os.path.basename(device), memory_device, throttle, janitor)
        drive.set_speed(speed)
        yield drive


def _make_devices(janitor: Janitor, image: str, size_bytes: int) -> tuple[str, str]:
    """Return the device to mount, whose file system never writes by itself, and the device in memory below it."""
    with open(image, "xb") as file:
        file.truncate(size_bytes)
    memory_device = janitor.run("losetup", "--find", "--show", image).strip()
    device = janitor.run("losetup", "--direct-io=on", "--find", "--show", memory_device).strip()
    janitor.run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0", device)
    return device, memory_device


def _check_free_space(size_bytes: int, memory: str) -> None:
    status = os.statvfs(memory)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < size_bytes:
        raise UserError(
            f"a drive of {size_bytes / 1e9:.1f} GB wants as much free in {memory}, which has {free_bytes / 1e9:.1f} GB"
        )
