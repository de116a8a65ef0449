"""Opening files; of untrusted ones (all but `opened`) only regular ones, and those read whole up to a maximum size.

Opening a pipe would wait for a writer, and reading a device might never end. Errors are OSError with a message of ours,
to which callers add what they wanted to read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator

from datagen.errors import UserError

MOST_COLLECTED_BYTES = 256 << 20  # more than any list or result that dlemu writes as JSON
MOST_NOTE_BYTES = 16 << 20  # larger than any file that describes other files: manifests, notes of checkpoints
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def check_local(path: str, setting: str, *, other: str = "") -> None:
    """Raise UserError for a URL, such as s3://b, file:/d or HOST:/d, where a local path is wanted, or `other`."""
    if _URL.match(path):
        raise UserError(f"{setting} is {path!r}, a URL: wanted {other}a path of a mounted file system")


@contextlib.contextmanager
def opened(path: str, flags: int = os.O_RDONLY, *, inside: int | None = None) -> Iterator[int]:
    """Open any file or folder, in the current folder or `inside` an open one, until the exit. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: str) -> int:
    """Open a regular file for reading, following links; return its descriptor. Raises OSError for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the error of opening a socket, or a device without a driver
            check_regular(path, os.stat(path).st_mode)
        raise
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
        # Without O_NONBLOCK: with it, reads of files that must first be recalled from an archive (HSM) would fail
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDONLY)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str, most_bytes: int = MOST_COLLECTED_BYTES) -> bytes:
    """Return the bytes of a regular file of at most `most_bytes`; raises OSError."""
    with open(open_regular(path), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        check_size(path, size_bytes, most_bytes)
        return file.read(size_bytes)


def check_size(path: str, size_bytes: int, most_bytes: int) -> None:
    """Raise OSError for a file that is larger than `most_bytes`."""
    if size_bytes > most_bytes:
        raise OSError(errno.EFBIG, f"it has {size_bytes} bytes, wanted at most {most_bytes}", path)


def check_regular(path: str, mode: int) -> None:
    """Raise OSError if `mode` (st_mode) is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a file")
        raise OSError(errno.ENODEV, f"it is {kind}, wanted a regular file", path)


def existing_folder(folder: str) -> str:
    """Return the folder, or the nearest of its parents, that exists."""
    path = os.path.abspath(folder)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def open_standard_streams() -> None:
    """Open /dev/null for closed standard streams: otherwise a file of the run gets the number, and the output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(descriptor, True)
