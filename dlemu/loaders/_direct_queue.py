"""A queue between processes into which `put` writes directly, without a feeder thread.

`multiprocessing.Queue` hands each item to a feeder thread. If workers keep all cores busy, that thread waits for a core
up to several milliseconds while a batch is ready, which would count as overhead of the emulator. Items here have a few
hundred bytes, far less than the capacity of a pipe, so that `put` normally does not block.
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


class NotInTime(BaseException):  # PyTorch would take an `Exception` as a sign that a worker died
    """No item arrived by `DirectQueue.until_ns`. Raised through PyTorch's iterator, this ends the wait for a batch."""


class DirectQueue:
    """A pipe with one reader at a time and any number of writers, and the methods of a queue that PyTorch calls.

    Items must be plain values, because a pickler for file descriptors and shared tensors takes ten times as long. One
    read takes all items that are ready, whereas `multiprocessing.Connection` needs two reads per item.
    """

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._write_lock = context.Lock()
        # Deadline of `get` (CLOCK_MONOTONIC) besides its timeout; 0: only items that are ready; None: no deadline
        self.until_ns: int | None = None
        self._buffer = bytearray()  # bytes read from the pipe but not returned yet: part of an item, or several items

    def __getstate__(self) -> dict[str, Any]:  # without the state of this process's reader
        return {name: value for name, value in self.__dict__.items() if name != "_readable"} | {"_buffer": bytearray()}

    def put(self, item: Any) -> None:
        """Write the item; block while the pipe is full."""
        data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        unwritten = memoryview(_LENGTH.pack(len(data)) + data)
        descriptor = self._writer.fileno()
        with self._write_lock:
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item. Raises Empty after `timeout` (s), NotInTime at `until_ns`, EOFError without writers."""
        while (data := self._take_item()) is None:
            due_seconds = math.inf if self.until_ns is None else max(0.0, (self.until_ns - time.monotonic_ns()) / 1e9)
            wait_seconds = min(due_seconds, math.inf if timeout is None else timeout)
            if wait_seconds < math.inf and not self._readable.poll(wait_seconds * 1000):
                raise NotInTime if due_seconds <= wait_seconds else queue.Empty
            chunk = os.read(self._reader.fileno(), _READ_BYTES)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        return pickle.loads(data)

    def _take_item(self) -> bytearray | None:
        """Remove the next item from `_buffer` and return its bytes; None if the item is incomplete."""
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            return None
        data = buffer[_LENGTH.size : end]
        del buffer[:end]
        return data

    @functools.cached_property
    def _readable(self) -> select.poll:
        """The poll object of the pipe, made once; `Connection.poll` makes one for each item."""
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
    """Return a context for a start method (fork, forkserver, spawn) whose queue is a `DirectQueue`."""
    context_type: type[BaseContext] = type(multiprocessing.get_context(start_method))

    class Context(context_type):  # type: ignore[misc, valid-type]  # a base known only at run time
        def Queue(self, maxsize: int = 0) -> DirectQueue:
            return DirectQueue(self)

    return Context()
