"""Opens untrusted files only if they are regular, and reads them only up to a maximum size.

Opening a pipe would wait for a writer, and reading a device might never end. Errors are OSError with a message of ours,
to which callers add what they wanted to read. Only `open_descriptor` opens anything. `check_local` and
`existing_folder` are for paths that need not exist, `open_standard_streams` is for a new process.
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

MOST_COLLECTED_BYTES = 256 << 20  # larger than any list or result that dlemu writes as JSON
MOST_NOTE_BYTES = 16 << 20  # larger than any file that describes others: manifests, notes of checkpoints
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def check_local(path: str, setting: str, *, other: str = "") -> None:
    """Raise UserError if a path is a URL (s3://b, file:/d, HOST:/d); `other` says what else the setting may be."""
    if _URL.match(path):
        raise UserError(f"{setting} is {path!r}, a URL: wanted {other}a path of a mounted file system")


@contextlib.contextmanager
def open_descriptor(path: str, flags: int = os.O_RDONLY, *, inside: int | None = None) -> Iterator[int]:
    """Open any file or folder for a `with` block, relative to the open folder `inside` if given. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: str) -> int:
    """Open a regular file for reading, following links; return its descriptor. Raises OSError for other files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the path is a socket, or a device without a driver
            check_regular(path, os.stat(path).st_mode)
        raise
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
        # With O_NONBLOCK, reads of files that must first be recalled from an archive (HSM) would fail
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDONLY)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str, most_bytes: int = MOST_COLLECTED_BYTES) -> bytes:
    """Return the bytes of a regular file of at most `most_bytes`. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        check_size(path, size_bytes, most_bytes)
        return file.read(size_bytes)


def check_size(path: str, size_bytes: int, most_bytes: int) -> None:
    """Raise OSError for a file larger than `most_bytes`."""
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
    """Open /dev/null for closed standard streams; otherwise, prints would go into the next files that are opened."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(descriptor, True)
