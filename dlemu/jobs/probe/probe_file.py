"""The file that a probe creates in a folder: locked while the probe runs, removed by the next probe if it is killed."""

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

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.report.units import size

_WRITE_BYTES = 8 << 20  # random bytes that are generated once; each page then begins with its own offset
_NAME = re.compile(r"dlemu-probe-([0-9]+)-([0-9a-f]{8})-[0-9a-f]{6}")
"""Process id, hash of the host name and a random part."""


@contextlib.contextmanager
def probe_file(folder: str, size_bytes: int) -> Iterator[str]:
    """Context: create a file in a folder, fill it with bytes that no drive can compress, yield its path, and remove it.

    It is locked until its end. Raises SpaceError; DlemuError if it can't be removed.
    """
    path = os.path.join(folder, f"dlemu-probe-{os.getpid()}-{_host()}-{os.urandom(3).hex()}")
    with contextlib.ExitStack() as stack:
        # first: Ctrl-C may come before the call that creates the file has returned
        stack.push(lambda _kind, failure, _trace: _remove(path, failure))
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            stack.pop_all()  # there is no file, or somebody else's
            raise SpaceError(f"{path} can't be written: {error.strerror}; name another folder") from error
        stack.callback(os.close, descriptor)
        with contextlib.suppress(OSError):  # on file systems without locks, the process id alone shows that it is used
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fill(descriptor, size_bytes)
        except OSError as error:
            raise SpaceError(f"{path} can't be written: {error.strerror}; name another folder") from error
        yield path


def _remove(path: str, failure: BaseException | None) -> None:
    """Remove the file; where that fails, raise a DlemuError that names it, after the `failure` of the probe, if any."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if failure is not None and not isinstance(failure, DlemuError):
            return  # Ctrl-C: the next probe there names the file
        kind = UserError if failure is None or isinstance(failure, UserError) else DlemuError
        left = f"{path} can't be removed: {error.strerror}; it is left, and the next probe of this folder removes it"
        raise kind(f"{failure}\n{left}" if failure else left) from failure


def fill(descriptor: int, size_bytes: int) -> None:
    """Write bytes that drives can neither compress nor deduplicate, fsync them, and drop them from the page cache."""
    block = bytearray(os.urandom(_WRITE_BYTES))
    for offset in range(0, size_bytes, _WRITE_BYTES):
        for start in range(0, _WRITE_BYTES, 4096):  # no two pages are equal
            block[start : start + 8] = (offset + start).to_bytes(8, "little")
        os.pwrite(descriptor, memoryview(block)[: min(_WRITE_BYTES, size_bytes - offset)], offset)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def remove_leftovers(folder: str) -> list[str]:
    """Remove what this user's killed probes left in a folder; report it, and files from other hosts, which stay."""
    warnings = []
    with contextlib.suppress(OSError):  # a folder that can't be listed or written is reported by `probe_file`
        for name in sorted(os.listdir(folder)):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            path = os.path.join(folder, name)
            if match[2] != _host():
                warnings.append(f"{path} belongs to a probe on another host: remove it if that probe has ended")
            elif size_bytes := _remove_if_stale(path, int(match[1])):
                warnings.append(f"{path} ({size(size_bytes)}) was left by a probe that was killed: removed it")
    return warnings


def _remove_if_stale(path: str, process: int) -> int:
    """Remove a file that no process locks and whose own process has ended; return its bytes, or 0 if it was kept."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or _is_alive(process, status.st_mtime):
                return 0
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            return max(1, status.st_size)
        finally:
            os.close(descriptor)
    return 0


def _is_alive(process: int, written_at: float) -> bool:
    """Return whether the process that wrote the file still runs, as opposed to one that reuses its process id."""
    try:
        return psutil.Process(process).create_time() <= written_at + 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"
