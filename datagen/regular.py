"""Files that others may have made: opened only where they are regular ones, and collected only up to a bound.

Whatever lies under a name, to open it ends: a pipe would wait for a writer, and a device has no end. The errors are the
system's (OSError) with words of our own; who reads puts the name of what was wanted before them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

MOST_COLLECTED_BYTES = 256 << 20
"""No list or result that dlemu writes as JSON is as large: a summary has a few numbers for each rank and epoch."""
MOST_NOTE_BYTES = 16 << 20
"""The same of what says a few things about much larger files: manifests, notes of checkpoints."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: str) -> int:
    """Return a descriptor for reading of a regular file, at the end of links; raises OSError for all else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # what opening a socket, or a device without a driver, gives
            raise _irregular(path, os.stat(path).st_mode) from None
        raise
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
        # Where files are brought back from an archive, a read that may not wait fails.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDONLY)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str, most_bytes: int = MOST_COLLECTED_BYTES) -> bytes:
    """Return the bytes of a regular file of `most_bytes` at most; raises OSError."""
    with open(open_regular(path), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        check_size(path, size_bytes, most_bytes)
        return file.read(size_bytes)


def check_size(path: str, size_bytes: int, most_bytes: int) -> None:
    """Raise OSError for a file that is larger than what is read as a whole."""
    if size_bytes > most_bytes:
        raise OSError(errno.EFBIG, f"it has {size_bytes} bytes, wanted at most {most_bytes}", path)


def check_regular(path: str, mode: int) -> None:
    """Raise OSError for the `st_mode` of what is no regular file."""
    if not stat.S_ISREG(mode):
        raise _irregular(path, mode)


def _irregular(path: str, mode: int) -> OSError:
    return OSError(errno.ENODEV, f"it is {_KINDS.get(stat.S_IFMT(mode), 'not a file')}, wanted a regular file", path)
