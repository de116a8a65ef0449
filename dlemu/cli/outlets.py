"""stdout and stderr that never fail: a closed stream, a full device or a closed terminal does not affect a run.

Output that can't be written is dropped, and the loss is reported once on stderr at the end, if possible.
"""

from __future__ import annotations

import contextlib
import errno
import io
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from datagen.errors import UserError
from datagen.regular import open_standard_streams

# Error handlers of text streams that raise; Python sets `surrogateescape` in the locales C and POSIX.
_RAISING = ("strict", "surrogateescape", "surrogatepass")
_READER_GONE = (errno.EPIPE, errno.EIO)  # a pipe's reader such as `head` ended, or the terminal was closed


class _Outlet(io.FileIO):
    """A file descriptor whose writes never raise: `problem` keeps the first error."""

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
    """Context of a command, with streams that never fail and so do not change its exit status.

    With --json, meant for programs, status 0 becomes 2 if stdout could not be written.
    """
    open_standard_streams()
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


def _text(outlet: _Outlet, previous: TextIO | None, *, line_buffering: bool) -> TextIO:
    """Return a text stream with the encoding of the previous one; characters that it can't encode are escaped."""
    encoding = "utf-8" if previous is None else previous.encoding
    errors = "backslashreplace" if previous is None or previous.errors in _RAISING else previous.errors
    buffered = io.BufferedWriter(outlet)
    return io.TextIOWrapper(buffered, encoding=encoding, errors=errors, line_buffering=line_buffering)
