"""Threads that move blocks: reads before writes, each kind in the order in which it was requested."""

from __future__ import annotations

import contextlib
import errno
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from queue import Empty, SimpleQueue

import numpy as np

from datagen.buffers import HUGE_PAGES_FROM_BYTES, AlignedBuffer
from datagen.errors import DlemuError, SpaceError
from dlemu.comm import PatienceError
from dlemu.comm.process_control import start_thread
from dlemu.jobs.kvcache.blocks import Blocks, Shard

_HUGE_PAGE = 2 << 20  # of x86-64, and of arm64 with pages of 4 KiB
_LOOK_SECONDS = 0.5
"""How often the one that waits looks whether the storage still answers."""


class Way(IntEnum):
    """What is done with objects, the most urgent first."""

    READ, WRITE, REMOVE = range(3)


@dataclass(eq=False)
class Batch:
    """What one prompt has read, or written."""

    way: Way
    place: int
    """Of the prompt, in the rank's plan."""
    objects: Sequence[int]
    left: int = 0
    """Shards that are not done."""
    call_ns: int = 0
    longest_ns: int = 0
    """Of one shard."""
    ended_ns: int = 0


class Mover:
    """So many threads with a buffer each; they run until `close`."""

    def __init__(
        self,
        blocks: Blocks,
        *,
        threads: int,
        tp: int,
        objects: int,
        buffer_bytes: int,
        seconds: float,
        folder: str = "kv.folder",
    ) -> None:
        """`objects`: numbers that there will be; `seconds`: how long no thread may get anything done.

        `folder`: what errors name.
        """
        self._blocks, self._tp, self._seconds, self._folder = blocks, tp, seconds, folder
        self._missing = np.full(objects, tp, np.int32)
        """Shards of each object that are not written yet."""
        self._waiting: tuple[deque[tuple[Batch, Shard]], ...] = tuple(deque() for _ in Way)
        self._turns: SimpleQueue[None] = SimpleQueue()
        """One for each shard that waits: whoever gets one takes the most urgent. (threading.Condition is all Python: it
        takes several times the CPU for the same, and has a lock that all threads want at once.)"""
        self._counting = threading.Lock()
        self._done: SimpleQueue[Batch] = SimpleQueue()
        self._failure: BaseException | None = None
        self._closed = False
        self._submitted = self._finished = 0
        """Shards, ever."""
        self._moved_ns = time.monotonic_ns()
        self.now_ns = time.monotonic_ns
        self._threads = []
        # One mapping for all of them is large enough for huge pages: half of what O_DIRECT costs otherwise is to find
        # and hold the pages of 4 KiB.
        page = _HUGE_PAGE if buffer_bytes >= _HUGE_PAGE else mmap.PAGESIZE
        apart = -(-buffer_bytes // page) * page
        buffers = AlignedBuffer(max(apart * threads, HUGE_PAGES_FROM_BYTES))
        buffers.take_pages()
        whole = buffers.view(apart * threads)
        for number in range(threads):
            buffer = whole[number * apart :][:buffer_bytes]
            thread = threading.Thread(target=self._work, args=(buffer,), name=f"kv-{number}", daemon=True)
            start_thread(thread)
            self._threads.append(thread)

    def submit(self, batch: Batch) -> None:
        """Have a batch done; `wait` returns it, unless it removes. Called by one thread."""
        shards = range(1 if batch.way is Way.REMOVE else self._tp)
        ops = [(batch, Shard(number, shard)) for number in batch.objects for shard in shards]
        batch.left = len(ops)
        if batch.way is Way.WRITE:
            for number in batch.objects:
                self._blocks.begin(number)
        if self._submitted == self._finished:
            self._moved_ns = time.monotonic_ns()
        self._submitted += len(ops)
        self._waiting[batch.way].extend(ops)
        for _ in ops:
            self._turns.put(None)

    def is_written(self, number: int) -> bool:
        """Return whether all shards of an object are there."""
        return not self._missing[number]

    def wait(self, until_ns: int) -> Batch | None:
        """Return a batch that is done, None at `until_ns`. Raises what a thread raised: SpaceError, DlemuError."""
        while True:
            self._check()
            seconds = (until_ns - time.monotonic_ns()) / 1e9
            try:
                return self._done.get(timeout=max(0.0, min(seconds, _LOOK_SECONDS)))
            except Empty:
                if seconds <= _LOOK_SECONDS:
                    self._check()
                    return None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        silent = (time.monotonic_ns() - self._moved_ns) / 1e9
        if self._submitted > self._finished and silent > self._seconds:
            raise PatienceError(
                f"the storage of {self._folder} completed no block for {silent:.0f} s (timeout_seconds): a file system "
                "that hangs does this; see `df` and `dmesg`"
            )

    def close(self, seconds: float = 10.0) -> None:  # a hanging storage must not hold the end
        """End the threads once each has done what it is at; what is waiting is not done."""
        self._closed = True
        for _ in self._threads:
            self._turns.put(None)
        for thread in self._threads:
            thread.join(seconds)
        if not any(thread.is_alive() for thread in self._threads):
            self._blocks.close()

    def _work(self, buffer: memoryview) -> None:
        try:
            while (op := self._take()) is not None:
                batch, shard = op
                self._finish(batch, shard, self._move(batch.way, shard, buffer))
        except BaseException as error:
            self._failure = _explained(error, self._folder)

    def _take(self) -> tuple[Batch, Shard] | None:
        self._turns.get()
        if self._closed:
            return None
        for queue in filter(None, self._waiting):  # those that are empty would each cost an exception
            with contextlib.suppress(IndexError):  # another thread was faster
                return queue.popleft()
        raise AssertionError("there are as many turns as shards")

    def _move(self, way: Way, shard: Shard, buffer: memoryview) -> int:
        if way is Way.REMOVE:
            self._blocks.remove(shard.object)
            return 0
        move: Callable[[Shard, memoryview], int] = self._blocks.read if way is Way.READ else self._blocks.write
        return move(shard, buffer)

    def _finish(self, batch: Batch, shard: Shard, call_ns: int) -> None:
        now_ns = time.monotonic_ns()
        with self._counting:
            self._finished += 1
            self._moved_ns = now_ns
            if batch.way is Way.WRITE:
                self._missing[shard.object] -= 1
            batch.left -= 1
            batch.call_ns += call_ns
            batch.longest_ns = max(batch.longest_ns, call_ns)
            batch.ended_ns = max(batch.ended_ns, now_ns)
            done = not batch.left
        if done and batch.way is not Way.REMOVE:
            self._done.put(batch)


def _explained(error: BaseException, folder: str) -> BaseException:
    if not isinstance(error, OSError) or isinstance(error, DlemuError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(f"{folder} is full: free some space, or limit each rank's share with kv.capacity_gb")
    return DlemuError(f"a block could not be moved: {error.strerror or error} ({error.filename or f'in {folder}'})")
