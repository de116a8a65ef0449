"""A queue between processes into which `put` writes directly, without a feeder thread.

`multiprocessing.Queue` hands each item to a feeder thread. Where workers keep all cores busy, that thread waits for a
core while its batch is ready: up to several milliseconds, which would count as the emulator's own overhead. The items
here are a few hundred bytes, far below a pipe's capacity, so putting does not block.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import pickle
import queue
import select
import struct
import time
from multiprocessing.context import BaseContext
from typing import Any

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16  # the default capacity of a pipe on Linux, so that one read takes everything in it


class NotInTime(BaseException):  # PyTorch takes any `Exception` for a sign that a worker died
    """No item came by `DirectQueue.until_ns`; raised through PyTorch's iterator, it ends the wait for a batch."""


class DirectQueue:
    """One pipe, one reader at a time, any number of writers; the part of `multiprocessing.Queue` that PyTorch uses.

    Items are plain values. A pickler that also carries descriptors and shared tensors costs ten times as much, and
    `multiprocessing.Connection` needs two reads per item; here one read takes all items that are ready.
    """

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._writing = context.Lock()
        self.until_ns: int | None = None
        """When `get` gives up, whatever its timeout (CLOCK_MONOTONIC). 0: take only what is ready; None: never."""
        self._ready = bytearray()
        """Bytes that were read from the pipe but not returned yet: part of an item, or several items."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_readable"} | {"_ready": bytearray()}

    def put(self, item: Any) -> None:
        """Write the item; blocks while the pipe is full."""
        data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        unwritten = memoryview(_LENGTH.pack(len(data)) + data)
        descriptor = self._writer.fileno()
        with self._writing:
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item.

        Raises:
            queue.Empty: none came within `timeout` seconds.
            NotInTime: none came by `until_ns`.
            EOFError: there is no writer.
        """
        while (data := self._take_ready()) is None:
            until = math.inf if self.until_ns is None else max(0.0, (self.until_ns - time.monotonic_ns()) / 1e9)
            seconds = min(until, math.inf if timeout is None else timeout)
            if seconds < math.inf and not self._readable.poll(seconds * 1000):
                raise NotInTime if until <= seconds else queue.Empty
            more = os.read(self._reader.fileno(), _READ_BYTES)
            if not more:
                raise EOFError
            self._ready += more
        return pickle.loads(data)

    def _take_ready(self) -> bytearray | None:
        """Take the bytes of the next item out of `_ready`; None while the item is not complete."""
        ready = self._ready
        if len(ready) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(ready)[0]
        if len(ready) < end:
            return None
        data = ready[_LENGTH.size : end]
        del ready[:end]
        return data

    @functools.cached_property
    def _readable(self) -> select.poll:
        """The poll object of the pipe; `Connection.poll` makes one per item."""
        poll = select.poll()
        poll.register(self._reader.fileno(), select.POLLIN)
        return poll

    def cancel_join_thread(self) -> None:
        """There is no thread to wait for."""

    def close(self) -> None:
        """Close both ends of the pipe."""
        self._reader.close()
        self._writer.close()


def direct_context(start_method: str) -> BaseContext:
    """Return the context of a start method (fork, forkserver, spawn), but with a `DirectQueue` as its queue."""
    context_type: type[BaseContext] = type(multiprocessing.get_context(start_method))

    class Context(context_type):  # type: ignore[misc, valid-type]  # the base is known only now
        def Queue(self, maxsize: int = 0) -> DirectQueue:
            return DirectQueue(self)

    return Context()
