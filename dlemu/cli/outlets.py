"""stdout and stderr that never fail: a closed stream, a full device or a closed terminal does not affect a run.

Output that can't be written is dropped; that is reported once at the end on stderr, if possible.
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

_RAISING = ("strict", "surrogateescape", "surrogatepass")
"""Error handlers of text streams that raise; Python uses the second one in the locales C and POSIX."""
_READER_GONE = (errno.EPIPE, errno.EIO)  # `| head` has ended, or the terminal was closed: nobody misses the output


class _Outlet(io.FileIO):
    """A file descriptor whose writes always succeed; the first error is kept in `problem`."""

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
    """Run a command with streams that never fail, so that they do not change its exit status.

    Except with --json, for programs: status 0 becomes 2 where stdout could not be written.
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


def _text(outlet: _Outlet, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    """Return a text stream in the encoding of the previous one; characters that it can't encode are escaped."""
    encoding = "utf-8" if before is None else before.encoding
    errors = "backslashreplace" if before is None or before.errors in _RAISING else before.errors
    buffered = io.BufferedWriter(outlet)
    return io.TextIOWrapper(buffered, encoding=encoding, errors=errors, line_buffering=line_buffering)
