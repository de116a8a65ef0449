"""A queue between processes that is written by who puts, not by a thread of its own.

`multiprocessing.Queue` hands each item to a feeder thread. Where workers keep all cores busy, that thread waits for a
core while its batch lies ready: up to several milliseconds, which would count as the emulator's own hand-over. What
crosses here is a few hundred bytes, far below what a pipe holds, so putting does not block.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import select
import struct
from multiprocessing.context import BaseContext
from typing import Any

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16
"""What a pipe holds by default (Linux): one call takes all that is ready."""


class DirectQueue:
    """One pipe, one reader at a time, any number of writers; the part of `multiprocessing.Queue` that PyTorch uses.

    Items are plain values. A pickler that also carries descriptors and shared tensors costs ten times as much, and the
    pipe's own framing (`multiprocessing.Connection`) two reads for each item; here one brings all that are ready.
    """

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._writing = context.Lock()
        self._readable: select.poll | None = None
        self._ready = bytearray()
        """Read, but not taken: a part of an item, or several."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readable": None, "_ready": bytearray()}

    def put(self, item: Any) -> None:
        """Write the item; blocks while the pipe is full."""
        data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        left = memoryview(_LENGTH.pack(len(data)) + data)
        descriptor = self._writer.fileno()
        with self._writing:
            while left:
                left = left[os.write(descriptor, left) :]

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item; raises queue.Empty after `timeout` seconds without one, EOFError when none can come."""
        while (data := self._taken()) is None:
            if timeout is not None and not self._poll().poll(timeout * 1000):
                raise queue.Empty
            more = os.read(self._reader.fileno(), _READ_BYTES)
            if not more:
                raise EOFError
            self._ready += more
        return pickle.loads(data)

    def _taken(self) -> bytearray | None:
        """Take the bytes of the next item out of what was read; None while they are not all there."""
        ready = self._ready
        if len(ready) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(ready)[0]
        if len(ready) < end:
            return None
        data = ready[_LENGTH.size : end]
        del ready[:end]
        return data

    def _poll(self) -> select.poll:
        """Return what waits for the pipe; made once, for `Connection.poll` makes it again for each item."""
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
