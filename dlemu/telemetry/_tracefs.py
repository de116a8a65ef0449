"""A kernel trace of block requests through tracefs: an instance of our own, seen by nobody else, gone with its maker.

https://docs.kernel.org/trace/events.html and ftrace.html (instances, trace_clock, trace_pipe).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator

from dlemu.telemetry.probe_base import AbsentError

_EVENTS = ("block_rq_issue", "block_rq_complete", "block_rq_requeue")
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
_PREFIX = "dlemu-"
_BUFFER_KIB_PER_CPU = 8192
_CHUNK_BYTES = 1 << 20


class Trace:
    """Events of some devices as text lines, stamped by CLOCK_MONOTONIC."""

    def __init__(self, device_numbers: Iterable[str], sys: str) -> None:
        """Begin to trace devices (`major:minor`); AbsentError where the kernel or the user's rights don't allow it."""
        root = _find_tracefs(sys)
        _remove_leftovers(f"{root}/instances")
        self._folder = f"{root}/instances/{_PREFIX}{os.getpid()}"
        try:
            os.mkdir(self._folder)
            self._begin(" || ".join(f"dev == {_kernel_number(number)}" for number in device_numbers))
        except OSError as error:
            self.close()
            raise AbsentError(f"telemetry.block_trace: {error.filename}: {error.strerror}") from error
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Yield what has come since the last call."""
        while True:
            try:
                chunk = os.read(self._pipe, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                return
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            yield from whole

    def lost_events(self) -> int:
        """Return how many events the kernel threw away because nobody fetched them in time."""
        lost = 0
        for cpu in os.listdir(f"{self._folder}/per_cpu"):
            with open(f"{self._folder}/per_cpu/{cpu}/stats") as lines:
                lost += sum(int(line.split()[-1]) for line in lines if line.startswith(("overrun:", "dropped events:")))
        return lost

    def close(self) -> None:
        """End the trace and remove the instance."""
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._pipe)
        with contextlib.suppress(OSError):
            self._set("tracing_on", "0")
            os.rmdir(self._folder)

    def _begin(self, condition: str) -> None:
        self._set("trace_clock", "mono")
        self._set("options/irq-info", "0")
        self._set("buffer_size_kb", str(_BUFFER_KIB_PER_CPU))
        for event in _EVENTS:
            self._set(f"events/block/{event}/filter", condition)
            self._set(f"events/block/{event}/enable", "1")
        self._pipe = os.open(f"{self._folder}/trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _set(self, name: str, value: str) -> None:
        with open(f"{self._folder}/{name}", "w") as out:
            out.write(value)


def _find_tracefs(sys: str) -> str:
    """Return where tracefs is, mounted for this process alone if it is not there."""
    root = f"{sys}/kernel/tracing"
    if not os.path.isdir(f"{root}/instances"):
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        if done or libc.mount(b"tracefs", root.encode(), b"tracefs", 0, None):
            raise AbsentError(f"telemetry.block_trace: tracefs can't be mounted: {os.strerror(ctypes.get_errno())}")
    return root


def _remove_leftovers(instances: str) -> None:
    """Remove the instances of recorders that were killed."""
    for name in os.listdir(instances):
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{name.removeprefix(_PREFIX)}"):
            with contextlib.suppress(OSError):
                os.rmdir(f"{instances}/{name}")


def _kernel_number(number: str) -> int:
    major, minor = map(int, number.split(":"))
    return major << 20 | minor
