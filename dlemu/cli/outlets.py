"""Where the program's words go: a closed stream, a full device or a terminal that is gone ends and turns no run.

What can't be written is dropped, and reported once at the end on stderr, if that still takes it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from datagen.errors import UserError

_STANDARD = 3  # stdin, stdout and stderr
_RAISING = ("strict", "surrogateescape", "surrogatepass")
"""Ways of streams with letters that their encoding lacks; Python takes the second one in the locales C and POSIX."""
_READER_GONE = (errno.EPIPE, errno.EIO)  # `| head`, and a terminal that hung up: whoever left wants no more


class _Outlet(io.FileIO):
    """A descriptor that takes all, and remembers what first kept it from being written."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # another program made the terminal non-blocking
                select.select([], [self], [])
        except OSError as error:
            self.problem = self.problem or error
            return memoryview(data).nbytes
        return count


@contextlib.contextmanager
def lasting_outlets() -> Iterator[None]:
    """Run a command: its exit status is its own, whatever becomes of stdout and stderr.

    But status 0 of what was to be read by a program (`--json`) becomes 2 where it could not be written.
    """
    _open_closed_descriptors()
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    out, err = _Outlet(1), _Outlet(2)
    sys.stdout = _text(out, sys.stdout, line_buffering=out.isatty())
    sys.stderr = _text(err, sys.stderr, line_buffering=True)
    status: int | str | None = 0
    try:
        yield
    except SystemExit as leave:
        status = leave.code
    sys.stdout.flush()
    if out.problem is not None and out.problem.errno not in _READER_GONE:
        print(f"dlemu: stdout could not be written ({out.problem.strerror}): it is incomplete", file=sys.stderr)
        if not status and "--json" in sys.argv:
            status = UserError.exit_status
    sys.stderr.flush()
    sys.exit(status)


def _open_closed_descriptors() -> None:
    """Put /dev/null where a standard stream is closed: else a file of the run's gets its number, and what it says."""
    for descriptor in range(_STANDARD):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(descriptor, True)


def _text(outlet: _Outlet, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    """Return a text stream in the encoding of the one before; letters that it lacks are escaped."""
    encoding = "utf-8" if before is None else before.encoding
    errors = "backslashreplace" if before is None or before.errors in _RAISING else before.errors
    buffered = io.BufferedWriter(outlet)
    return io.TextIOWrapper(buffered, encoding=encoding, errors=errors, line_buffering=line_buffering)
