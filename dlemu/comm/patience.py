"""A deadline for calls that wait in the kernel: a `stat` of a file system that hangs answers no signal of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from datagen.errors import DlemuError

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """Return what `call` returns, or raise what it raises; DlemuError when that takes longer.

    It then goes on in a thread that ends with this process. Call it from the main thread: that one waits, so Ctrl-C
    and SIGTERM are heard meanwhile.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="dlemu-patience", daemon=True)
    thread.start()
    thread.join(min(seconds, threading.TIMEOUT_MAX))
    if errors:
        raise errors[0]
    if not results:
        raise DlemuError(
            f"{what} took longer than {seconds:g} s (timeout_seconds): a file system that hangs does this; see "
            "`df` and `dmesg`"
        )
    return results[0]
