"""Counters that stay open: one pread a reading."""

from __future__ import annotations

import os

from dlemu.telemetry.probe_base import AbsentError

_READ_BYTES = 1 << 18


class Counters:
    """A file of /proc or /sys that is read again and again."""

    def __init__(self, path: str) -> None:
        """Open it; AbsentError when this host or kernel has none, or lets us not read it."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.pread(self._descriptor, 1, 0)
        except OSError as error:
            raise AbsentError(f"telemetry: {path} can't be read: {error.strerror}") from error

    def text(self) -> str:
        """Return its content now."""
        return os.pread(self._descriptor, _READ_BYTES, 0).decode(errors="replace")
