"""A queue between processes that is written by who puts, not by a thread of its own.

`multiprocessing.Queue` hands each item to a feeder thread. Where workers keep all cores busy, that thread waits for a
core while its batch lies ready: up to several milliseconds, which would count as the emulator's own hand-over. What
crosses here is a few hundred bytes, far below what a pipe holds, so putting does not block.
"""

from __future__ import annotations

import multiprocessing
import queue
from multiprocessing.context import BaseContext
from typing import Any


class DirectQueue:
    """One pipe, one reader at a time, any number of writers; the part of `multiprocessing.Queue` that PyTorch uses."""

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._writing = context.Lock()

    def put(self, item: Any) -> None:
        """Write the item; blocks while the pipe is full."""
        with self._writing:
            self._writer.send(item)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item; raises queue.Empty after `timeout` seconds without one."""
        if not self._reader.poll(timeout):
            raise queue.Empty
        return self._reader.recv()

    def cancel_join_thread(self) -> None:
        """There is no thread to wait for."""

    def close(self) -> None:
        """Let go of both ends."""
        self._reader.close()
        self._writer.close()


def direct_context(start_method: str) -> BaseContext:
    """Return the context of a start method (fork, forkserver, spawn) with queues of this kind."""
    kind: type[BaseContext] = type(multiprocessing.get_context(start_method))

    class Context(kind):  # type: ignore[misc, valid-type]
        """As its parent, but for the queues."""

        def Queue(self, maxsize: int = 0) -> DirectQueue:
            return DirectQueue(self)

    return Context()
