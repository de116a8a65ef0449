"""A deadline for calls that block in the kernel: no signal can interrupt a `stat` of a hung file system."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from datagen.errors import DlemuError
from dlemu.comm.comm_base import Interrupted
from dlemu.comm.process_control import start_thread

T = TypeVar("T")
_VISIBLE_SECONDS = 10.0


class PatienceError(DlemuError):
    """A call took too long: its file system probably hangs, and would block the next call to it as well."""


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """Return what `call` returns, or raise what it raises; PatienceError when that takes longer.

    The call then continues in a daemon thread. Use this from the main thread: it only waits, so Ctrl-C and SIGTERM are
    handled meanwhile. A SIGTERM after more than half of the wait most likely comes from a supervisor whose own timeout
    ran out because of this call, so it raises PatienceError as well, which names `what`.
    """
    began_seconds = time.monotonic()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="dlemu-patience", daemon=True)
    start_thread(thread)
    interruption: BaseException | None = None
    try:
        thread.join(min(seconds, threading.TIMEOUT_MAX))
    except Interrupted as caught:
        interruption = caught
        if caught.signal_number != signal.SIGTERM or time.monotonic() - began_seconds < seconds / 2:
            raise
    if errors:
        raise errors[0]
    if not results:
        waited = "longer than" if interruption is None else "more than half of"
        raise PatienceError(
            f"{what} took {waited} {seconds:g} s (timeout_seconds): a hung file system does this; see `df` and `dmesg`"
        ) from interruption
    return results[0]


def comes_into_sight(is_seen: Callable[[], bool]) -> bool:
    """Return whether this host sees what another one has just made, as soon as it does; else False.

    Network file systems keep what they know of a folder for a while, so it looks again for 10 s.
    """
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while not is_seen():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)  # five looks a second are no load for a file server
    return True
