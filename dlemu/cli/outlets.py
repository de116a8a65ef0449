"""stdout and stderr that never fail: a closed stream, a full device or a closed terminal does not affect a run.

Output that can't be written is dropped. At the end, the loss is reported once on stderr, if possible.
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

# Error handlers by which a text stream may raise; Python sets `surrogateescape` in the locales C and POSIX.
_RAISING = ("strict", "surrogateescape", "surrogatepass")
_READER_GONE = (errno.EPIPE, errno.EIO)  # a pipe's reader such as `head` ended, or the terminal was closed: no problem


class _SafeFileIO(io.FileIO):
    """A file whose writes never raise; `problem` is the first error of a write."""

    problem: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # another program made the terminal non-blocking
                select.select([], [self], [])
        except OSError as error:
            self.problem = self.problem or error
            return memoryview(data).nbytes
        return count


@contextlib.contextmanager
def unfailing_streams() -> Iterator[None]:
    """Context of a whole program, in which stdout and stderr never fail and so do not change the exit status.

    It ends in SystemExit, unless by another exception. With --json, status 0 becomes 2 if stdout could not be written.
    """
    open_standard_streams()
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    out = _SafeFileIO(1, "w", closefd=False)
    err = _SafeFileIO(2, "w", closefd=False)
    sys.stdout = _text(out, sys.stdout, line_buffering=out.isatty())
    sys.stderr = _text(err, sys.stderr, line_buffering=True)
    status: int | str | None = 0
    try:
        yield
    except SystemExit as exit_request:
        status = exit_request.code
    sys.stdout.flush()
    if out.problem is not None and out.problem.errno not in _READER_GONE:
        print(f"dlemu: stdout could not be written ({out.problem.strerror}): it is incomplete", file=sys.stderr)
        if not status and "--json" in sys.argv:
            status = UserError.exit_status
    sys.stderr.flush()
    sys.exit(status)


def _text(file: _SafeFileIO, previous: TextIO | None, *, line_buffering: bool) -> TextIO:
    """Return a text stream with the encoding of the previous one. Characters that it can't encode are escaped."""
    encoding = "utf-8" if previous is None else previous.encoding
    errors = "backslashreplace" if previous is None or previous.errors in _RAISING else previous.errors
    buffered = io.BufferedWriter(file)
    return io.TextIOWrapper(buffered, encoding=encoding, errors=errors, line_buffering=line_buffering)
