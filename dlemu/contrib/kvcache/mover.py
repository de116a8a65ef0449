"""Blocks on storage: the content of their shards, and the threads that write, read, check and remove shards.

Blocks are numbered in the order of writing. Shard s is the part of block s // kv.tp that accelerator s % kv.tp stores.
Example: with kv.tp=2, block 3 is in files 0000000006.kv and 0000000007.kv.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from queue import Empty, SimpleQueue

import numpy as np

from dlemu.contrib.kvcache.settings import ALIGNMENT, KvSettings
from dlemu.extend import AlignedBuffer, BulkContent, DlemuError, SpaceError, UserError, storage_base

_SHARD_BITS = 40  # of the 64 bits of a stamp id; the other 24 hold the rank: 16 million ranks with 10^12 shards each
_STAMP_EVERY_BYTES = 4096  # as in `BulkContent`
_HUGE_PAGE = 2 << 20  # on x86-64, and on arm64 with 4 KiB pages
_HUGE_PAGES_FROM_BYTES = 16 << 20  # Smaller `AlignedBuffer`s have no huge pages.
_POLL_SECONDS = 0.5  # interval of checks in `Mover.wait` whether the storage still completes requests


@dataclass(frozen=True)
class Blocks:
    """A rank's blocks on storage, one file or object per shard; shared by threads.

    Files are written under a temporary name and then renamed, without fsync, as inference engines do. The official load
    syncs each file, and drops it from the page cache before each read, as MLPerf Storage's tool does. The content is
    unique and can be checked. `write` and `read` return the ns spent in storage calls; they raise OSError, DlemuError.
    """

    storage: storage_base.StorageBase
    folder: str
    bulk: BulkContent
    rank: int
    settings: KvSettings
    sizes: Sequence[int]  # by block: bytes of one of its shards

    def path(self, shard: int) -> str:
        return f"{self.folder}/{file_name(shard)}"

    def stamp_id(self, shard: int) -> int:
        """Return the number that identifies a shard in its stamps; unique across ranks."""
        return self.rank << _SHARD_BITS | shard

    def write(self, shard: int, buffer: memoryview) -> int:
        began_ns = time.monotonic_ns()
        fill_ns = 0
        writer = self.storage.create(self.path(shard))
        try:
            for offset, chunk in self._chunks(shard, buffer):
                fill_began_ns = time.monotonic_ns()
                self.bulk.fill(chunk, self.stamp_id(shard), offset)
                fill_ns += time.monotonic_ns() - fill_began_ns
                writer.write(chunk)
            if self.settings.is_official:
                writer.sync()
            writer.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                writer.discard()
            raise
        return time.monotonic_ns() - began_ns - fill_ns

    def read(self, shard: int, buffer: memoryview) -> int:
        began_ns = time.monotonic_ns()
        check_ns = 0
        path = self.path(shard)
        if self.settings.is_official and not self.storage.reads_nothing:
            self.storage.evict(path, write_first=False)
        size_bytes = self.sizes[shard // self.settings.tp]
        with contextlib.closing(self.storage.open_sized(path, size_bytes)) as reader:
            for offset, chunk in self._chunks(shard, buffer):
                read_bytes = reader.read_into(chunk, offset)
                check_began_ns = time.monotonic_ns()
                problem = self._problem(chunk, shard, offset)
                if read_bytes != len(chunk):
                    problem = f"it ends at {offset + read_bytes}"
                if problem and not self.storage.reads_nothing:
                    raise DlemuError(
                        f"{path} is not what was written there: {problem}; the storage lost or mixed up data"
                    )
                check_ns += time.monotonic_ns() - check_began_ns
        return time.monotonic_ns() - began_ns - check_ns

    def remove(self, shard: int, buffer: memoryview) -> int:
        """Remove a shard. Like `write` and `read`, it gets a buffer and returns a time, as `Mover` calls all three."""
        self.storage.remove(self.path(shard))
        return 0

    def _chunks(self, shard: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
        size_bytes = self.sizes[shard // self.settings.tp]
        for offset in range(0, size_bytes, len(buffer)):
            yield offset, buffer[: min(len(buffer), size_bytes - offset)]

    def _problem(self, view: memoryview, shard: int, offset: int) -> str:
        """Return what is wrong with the bytes read from a shard at `offset`; empty if they are as written."""
        stamp_id = self.stamp_id(shard)
        offsets = np.arange(offset, offset + len(view), _STAMP_EVERY_BYTES, dtype=np.uint64)
        words = np.frombuffer(view, np.uint64).reshape(-1, _STAMP_EVERY_BYTES // 8)
        # The stamp's first word is a hash of the other three; leaving it out makes the check three times faster.
        is_right = (words[:, 1] == self.bulk.seed_hash) & (words[:, 2] == stamp_id) & (words[:, 3] == offsets)
        if not is_right.all():
            wrong_offset = offset + int(is_right.argmin()) * _STAMP_EVERY_BYTES
            return f"at byte {wrong_offset} there is not the stamp of shard {stamp_id}"
        difference = self.bulk.first_difference(view, stamp_id, offset) if self.settings.verify else None
        return "" if difference is None else f"byte {offset + difference} is not what was written"


def file_name(shard: int) -> str:
    return f"{shard:010x}.kv"


class Operation(IntEnum):
    """An operation on a block; the values are in order of priority."""

    READ, REMOVE, WRITE = range(3)


@dataclass(eq=False)
class Batch:
    """The blocks that a prompt (official load: a worker) reads or writes, or that are removed, and the time it took."""

    operation: Operation
    owner: int  # index of the prompt in the rank's plan, or of the worker; -1 for removals
    blocks: Sequence[int]  # their numbers on storage
    shards_left: int = 0
    call_ns: int = 0  # time in storage calls, summed over shards
    ended_ns: int = 0  # time when the last shard was done


class Mover:
    """Threads, each with its own buffer, that read, write and remove queued shards until `close`.

    They take reads first, then removals, which make room, then writes, each in the order of submission.
    """

    def __init__(self, blocks: Blocks, *, seconds: float) -> None:
        """Start the threads. A storage that completes no shard for `seconds` counts as hung."""
        settings = blocks.settings
        self._moves = {Operation.READ: blocks.read, Operation.WRITE: blocks.write, Operation.REMOVE: blocks.remove}
        self._tp = settings.tp
        self._folder = settings.folder
        self._hang_timeout_seconds = seconds
        self._unwritten_shards = np.full(len(blocks.sizes), self._tp, np.int32)  # of each block
        self._queues: tuple[deque[tuple[Batch, int]], ...] = tuple(deque() for _ in Operation)  # (batch, shard)
        self._permits: SimpleQueue[None] = SimpleQueue()
        """A semaphore with one item per queued shard: a thread that gets an item takes the shard of highest priority.
        (threading.Condition is pure Python, takes several times the CPU, and all threads contend for its lock.)"""
        self._lock = threading.Lock()  # guards the counters of shards and batches
        self._done: SimpleQueue[Batch] = SimpleQueue()
        self._failure: BaseException | None = None
        self._closed = False
        self._submitted = self._finished = 0  # shards since the start
        self._last_done_ns = time.monotonic_ns()
        self.now_ns = time.monotonic_ns  # the clock of `wait`, for callers; tests replace it
        buffer_bytes = min(settings.transfer_size, max(blocks.sizes, default=ALIGNMENT))
        # All buffers are in one mapping, which is large enough for huge pages: with 4 KiB pages, half of the CPU time
        # of O_DIRECT goes into looking up and pinning pages.
        page_bytes = _HUGE_PAGE if buffer_bytes >= _HUGE_PAGE else mmap.PAGESIZE
        stride = -(-buffer_bytes // page_bytes) * page_bytes
        mapping = AlignedBuffer(max(stride * settings.threads, _HUGE_PAGES_FROM_BYTES))
        mapping.take_pages()
        all_bytes = mapping.view(stride * settings.threads)
        buffers = [all_bytes[thread * stride :][:buffer_bytes] for thread in range(settings.threads)]
        self._threads = [threading.Thread(target=self._work, args=(buffer,), daemon=True) for buffer in buffers]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch) -> None:
        """Queue a batch; once it is done, `wait` returns it, unless it is a removal. Only one thread may call this."""
        shards = [(batch, block * self._tp + index) for block in batch.blocks for index in range(self._tp)]
        batch.shards_left = len(shards)
        if self._submitted == self._finished:
            self._last_done_ns = time.monotonic_ns()
        self._submitted += len(shards)
        self._queues[batch.operation].extend(shards)
        for _ in shards:
            self._permits.put(None)

    def is_written(self, block: int) -> bool:
        return not self._unwritten_shards[block]

    def wait(self, until_ns: int) -> Batch | None:
        """Return the next finished batch, None at `until_ns`. Raises a thread's error; DlemuError if storage hangs."""
        while True:
            if self._failure is not None:
                raise self._failure
            idle_seconds = (time.monotonic_ns() - self._last_done_ns) / 1e9
            if self._submitted > self._finished and idle_seconds > self._hang_timeout_seconds:
                raise DlemuError(
                    f"the storage of {self._folder} completed no block for {idle_seconds:.0f} s (timeout_seconds): a "
                    "file system that hangs does this; see `df` and `dmesg`"
                )
            remaining_seconds = (until_ns - time.monotonic_ns()) / 1e9
            try:
                return self._done.get(timeout=max(0.0, min(remaining_seconds, _POLL_SECONDS)))
            except Empty:
                if remaining_seconds <= _POLL_SECONDS:
                    return None

    def close(self, seconds: float = 10.0) -> None:
        """Drop queued shards and end each thread after its current one; wait `seconds` for each: storage may hang."""
        self._closed = True
        for _ in self._threads:
            self._permits.put(None)
        for thread in self._threads:
            thread.join(seconds)

    def _work(self, buffer: memoryview) -> None:
        try:
            while (item := self._take()) is not None:
                batch, shard = item
                self._finish(batch, shard, self._moves[batch.operation](shard, buffer))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                advice = "free some space, or limit each rank's share with kv.capacity_gb"
                self._failure = SpaceError(f"{error.strerror}, in {self._folder}: {advice}")
            else:
                reason = f"{error.strerror or error} ({error.filename or f'in {self._folder}'})"
                self._failure = UserError(f"a block could not be moved: {reason}")
        except BaseException as error:
            self._failure = error

    def _take(self) -> tuple[Batch, int] | None:
        """Return the next shard and its batch, None when the threads are to end."""
        self._permits.get()
        if self._closed:
            return None
        for queue in filter(None, self._queues):  # Skip empty queues, as each would cost an exception.
            with contextlib.suppress(IndexError):  # Another thread has taken the last shard of this queue.
                return queue.popleft()
        raise AssertionError("there are as many permits as queued shards")

    def _finish(self, batch: Batch, shard: int, call_ns: int) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            self._finished += 1
            self._last_done_ns = now_ns
            if batch.operation is Operation.WRITE:
                self._unwritten_shards[shard // self._tp] -= 1
            batch.shards_left -= 1
            batch.call_ns += call_ns
            batch.ended_ns = max(batch.ended_ns, now_ns)
            is_done = not batch.shards_left
        if is_done and batch.operation is not Operation.REMOVE:
            self._done.put(batch)
