"""A queue between processes that is written by who puts, not by a thread of its own.

`multiprocessing.Queue` hands each item to a feeder thread. Where workers keep all cores busy, that thread waits for a
core while its batch lies ready: up to several milliseconds, which would count as the emulator's own hand-over. What
crosses here is a few hundred bytes, far below what a pipe holds, so putting does not block.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import select
from multiprocessing.context import BaseContext
from typing import Any


class DirectQueue:
    """One pipe, one reader at a time, any number of writers; the part of `multiprocessing.Queue` that PyTorch uses.

    Items are plain values. A pickler that also carries descriptors and shared tensors costs ten times as much.
    """

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._writing = context.Lock()
        self._readable: select.poll | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readable": None}

    def put(self, item: Any) -> None:
        """Write the item; blocks while the pipe is full."""
        data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        with self._writing:
            self._writer.send_bytes(data)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item; raises queue.Empty after `timeout` seconds without one."""
        if timeout is not None and not self._poll().poll(timeout * 1000):
            raise queue.Empty
        return pickle.loads(self._reader.recv_bytes())

    def _poll(self) -> select.poll:
        """Return what waits for the pipe; made once, for `Connection.poll` makes it anew for each item."""
        if self._readable is None:
            self._readable = select.poll()
            self._readable.register(self._reader.fileno(), select.POLLIN)
        return self._readable

    def cancel_join_thread(self) -> None:
        """There is no thread to wait for."""

    def close(self) -> None:
        """Let go of both ends."""
        self._reader.close()
        self._writer.close()


def direct_context(start_method: str) -> BaseContext:
    """Return the context of a start method (fork, forkserver, spawn) with queues of this kind."""
    kind: type[BaseContext] = type(multiprocessing.get_context(start_method))

    class Context(kind):  # type: ignore[misc, valid-type]  # the base is known only now
        """As its parent, but for the queues."""

        def Queue(self, maxsize: int = 0) -> DirectQueue:
            return DirectQueue(self)

    return Context()
