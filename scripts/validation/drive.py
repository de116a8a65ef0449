"""A drive of known speed: two loop devices on a file in memory, the kernel's throttle between them. Needs root.

The throttle acts before a device counts its requests. Behind a second loop device the waiting is where a real drive has
it: in the figures of the device that is mounted (busy, queue depth, latency).

    with known_drive(Speed(read_bytes_per_second=200_000_000), size_bytes=2 << 30) as drive:
        ...make files in drive.folder: writing is not limited...
        drive.forget_cache()
        subprocess.run(drive.command(["dlemu", "train", ...]))     # only what runs by `command` meets the limit

Nothing of it outlives the block or its process: a janitor removes it, even after a SIGKILL.
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
"""Where the image lies: memory, so that nothing but the throttle is slow."""


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
        """Mount it anew: no page of it is left in memory. Nobody may have a file open."""
        self._janitor.run("umount", self.folder)
        self._janitor.run("mount", "-o", "noatime", f"/dev/{self.device}", self.folder)


def why_no_drive() -> str | None:
    """Return why no drive of known speed can be made here, or None when it can."""
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
    """Make a drive, and remove it with all that runs on it. `memory` is the folder of its image.

    Raises:
        UserError: it can't be made here, or `memory` has less than `size_bytes` left.
        DlemuError: a part of it could not be removed.
    """
    reason = why_no_drive()
    if reason:
        raise UserError(reason)
    _look_for_room(size_bytes, memory)
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
    """Return the device to mount, with a file system that never writes by itself, and the one in memory below it."""
    with open(image, "xb") as file:
        file.truncate(size_bytes)
    memory_device = janitor.run("losetup", "--find", "--show", image).strip()
    device = janitor.run("losetup", "--direct-io=on", "--find", "--show", memory_device).strip()
    janitor.run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0", device)
    return device, memory_device


def _look_for_room(size_bytes: int, memory: str) -> None:
    left = os.statvfs(memory)
    free_bytes = left.f_bavail * left.f_frsize
    if free_bytes < size_bytes:
        raise UserError(
            f"a drive of {size_bytes / 1e9:.1f} GB wants as much free in {memory}, which has {free_bytes / 1e9:.1f} GB"
        )
