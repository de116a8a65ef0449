"""The test file that a probe creates in a folder: it is locked, and the next probe removes those of killed probes."""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from collections.abc import Iterator

from datagen.errors import DlemuError, SpaceError, UserError
from datagen.owned import create_new, lock, part_name, remove_parts

_WRITE_BYTES = 8 << 20  # size of a write; its random bytes are generated once, and each page begins with its offset


@contextlib.contextmanager
def probe_file(folder: str, size_bytes: int) -> Iterator[str]:
    """Context: create a file in a folder, fill it with incompressible bytes, yield its path; remove it in the end.

    First removes the files of killed probes of this host. Raises SpaceError; DlemuError if it can't remove the file.
    """
    # The host is part of the name: on file systems without locks between hosts, another host's file looks abandoned.
    name = f"dlemu-probe-{zlib.crc32(socket.gethostname().encode()):08x}"
    path = os.path.join(folder, part_name(name))
    with contextlib.ExitStack() as stack:
        # Registered before the file exists, because Ctrl-C may interrupt the call that creates it.
        stack.push(lambda _kind, failure, _trace: _remove(path, failure))
        try:
            try:
                remove_parts(folder, name)
                descriptor = create_new(path, flags=os.O_WRONLY, mode=0o600)
            except OSError:
                stack.pop_all()  # remove nothing: no file was created, or the path is somebody else's file
                raise
            stack.callback(os.close, descriptor)
            lock(descriptor)
            _fill(descriptor, size_bytes)
        except OSError as error:
            raise SpaceError(f"{path} can't be written: {error.strerror}; name another folder") from error
        yield path


def _remove(path: str, failure: BaseException | None) -> None:
    """Remove the file. Raises DlemuError if that fails; it repeats the probe's own `failure`, if any, first."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if failure is not None and not isinstance(failure, DlemuError):
            return  # let Ctrl-C pass: the next probe in the folder removes the file
        kind = UserError if failure is None or isinstance(failure, UserError) else DlemuError
        problem = f"{path} can't be removed: {error.strerror}; it is left, and the next probe of this folder removes it"
        raise kind(f"{failure}\n{problem}" if failure else problem) from failure


def _fill(descriptor: int, size_bytes: int) -> None:
    """Write bytes that drives can neither compress nor deduplicate, fsync them, and drop them from the page cache."""
    block = bytearray(os.urandom(_WRITE_BYTES))
    for offset in range(0, size_bytes, _WRITE_BYTES):
        for start in range(0, _WRITE_BYTES, 4096):  # a unique number in each page defeats deduplication
            block[start : start + 8] = (offset + start).to_bytes(8, "little")
        os.pwrite(descriptor, memoryview(block)[: min(_WRITE_BYTES, size_bytes - offset)], offset)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
