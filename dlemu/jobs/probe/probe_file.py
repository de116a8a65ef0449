"""The file that a probe creates in a folder: locked while the probe runs, removed by the next probe if it is killed."""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from collections.abc import Iterator

from datagen.errors import DlemuError, SpaceError, UserError
from datagen.owned import create_new, lock, part_name, remove_parts

_WRITE_BYTES = 8 << 20  # random bytes that are generated once; each page then begins with its own offset


@contextlib.contextmanager
def probe_file(folder: str, size_bytes: int) -> Iterator[str]:
    """Context: create a file in a folder, fill it with bytes that no drive can compress, yield its path, and remove it.

    Files that killed probes of this host left there are removed first. Raises SpaceError; DlemuError if the file can't
    be removed.
    """
    # With the host's name: where hosts don't share locks, none takes another's file for one that was left.
    name = f"dlemu-probe-{zlib.crc32(socket.gethostname().encode()):08x}"
    path = os.path.join(folder, part_name(name))
    with contextlib.ExitStack() as stack:
        # first: Ctrl-C may come before the call that creates the file has returned
        stack.push(lambda _kind, failure, _trace: _remove(path, failure))
        try:
            remove_parts(folder, name)
            descriptor = create_new(path, flags=os.O_WRONLY, mode=0o600)
        except OSError as error:
            stack.pop_all()  # there is no file, or somebody else's
            raise SpaceError(f"{path} can't be written: {error.strerror}; name another folder") from error
        stack.callback(os.close, descriptor)
        lock(descriptor)
        try:
            _fill(descriptor, size_bytes)
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
            return  # Ctrl-C: the next probe there removes the file
        kind = UserError if failure is None or isinstance(failure, UserError) else DlemuError
        problem = f"{path} can't be removed: {error.strerror}; it is left, and the next probe of this folder removes it"
        raise kind(f"{failure}\n{problem}" if failure else problem) from failure


def _fill(descriptor: int, size_bytes: int) -> None:
    """Write bytes that drives can neither compress nor deduplicate, fsync them, and drop them from the page cache."""
    block = bytearray(os.urandom(_WRITE_BYTES))
    for offset in range(0, size_bytes, _WRITE_BYTES):
        for start in range(0, _WRITE_BYTES, 4096):  # no two pages are equal
            block[start : start + 8] = (offset + start).to_bytes(8, "little")
        os.pwrite(descriptor, memoryview(block)[: min(_WRITE_BYTES, size_bytes - offset)], offset)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
