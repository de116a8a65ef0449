"""The file that a probe of a folder makes to read: locked while it lives, removed by the next one if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import zlib
from collections.abc import Iterator

import psutil

from datagen.errors import SpaceError
from dlemu.report.units import size

_WRITE_BYTES = 8 << 20  # random bytes that are drawn once; each page then gets its own number
_NAME = re.compile(r"dlemu-probe-([0-9]+)-(?:([0-9a-f]{8})-)?[0-9a-f]{6}")
"""Process, host (older versions: none) and a random part."""


@contextlib.contextmanager
def probe_file(folder: str, size_bytes: int) -> Iterator[str]:
    """Make a file in a folder and remove it at the end; raises SpaceError."""
    path = os.path.join(folder, f"dlemu-probe-{os.getpid()}-{_host()}-{os.urandom(3).hex()}")
    try:
        with _made(path, size_bytes):
            yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def _made(path: str, size_bytes: int) -> Iterator[None]:
    """Write a file of bytes that no drive can compress or find equal, to the device, and hold its lock."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpaceError(f"{path} can't be written: {error.strerror}; name another folder") from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then the process alone says that it lives
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fill(descriptor, size_bytes)
        except OSError as error:
            raise SpaceError(f"{path} can't be written: {error.strerror}; name another folder") from error
        yield
    finally:
        os.close(descriptor)


def fill(descriptor: int, size_bytes: int) -> None:
    """Write so many bytes that no drive can compress or find equal, and wait until the device has them."""
    block = bytearray(os.urandom(_WRITE_BYTES))
    for offset in range(0, size_bytes, _WRITE_BYTES):
        for start in range(0, _WRITE_BYTES, 4096):  # no two pages are equal
            block[start : start + 8] = (offset + start).to_bytes(8, "little")
        os.pwrite(descriptor, memoryview(block)[: min(_WRITE_BYTES, size_bytes - offset)], offset)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def remove_left(folder: str) -> list[str]:
    """Remove what probes of this user left in a folder that were killed; say what, and what is left of another host."""
    warnings = []
    with contextlib.suppress(OSError):  # one that can't be listed or written is named when the file is made
        for name in sorted(os.listdir(folder)):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            path = os.path.join(folder, name)
            if match[2] is not None and match[2] != _host():
                warnings.append(f"{path} belongs to a probe on another host: remove it if that probe has ended")
            elif size_bytes := _removed(path, int(match[1])):
                warnings.append(f"{path} ({size(size_bytes)}) was left by a probe that was killed: removed it")
    return warnings


def _removed(path: str, process: int) -> int:
    """Remove a file that nobody holds and whose process is gone; return its bytes, 0 for one that stays."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or _lives(process, status.st_mtime):
                return 0
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            return max(1, status.st_size)
        finally:
            os.close(descriptor)
    return 0


def _lives(process: int, written_at: float) -> bool:
    """Return whether the process is there that wrote a file then, and not one that got its number later."""
    try:
        return psutil.Process(process).create_time() <= written_at + 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"
