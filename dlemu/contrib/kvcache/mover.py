"""Blocks on storage: the bytes of their shards, and the threads that write, read, check and remove these.

Shard s is the part of block s // kv.tp that accelerator s % kv.tp stores; blocks are numbered in the order of writing.
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

_SHARD_BITS = 40  # of the 64 in a stamp; the other 24 hold the rank: 16 million ranks with 10^12 shards each
_STAMP_EVERY_BYTES = 4096  # as `BulkContent` has it
_WORDS = _STAMP_EVERY_BYTES // 8
_HUGE_PAGE = 2 << 20  # on x86-64, and on arm64 with 4 KiB pages
_HUGE_PAGES_FROM_BYTES = 16 << 20  # smaller `AlignedBuffer`s have none
_POLL_SECONDS = 0.5
"""How often `Mover.wait` checks whether the storage still completes requests."""


@dataclass(frozen=True)
class Blocks:
    """A rank's blocks, a file or object per shard: written under a temporary name, then renamed, without fsync.

    So do engines; the official load syncs each file, and drops it from the page cache before each read. The bytes are
    unique, checkable, and generated at memory speed. Shared by threads. `write` and `read` return the nanoseconds spent
    in calls; they raise OSError, DlemuError for damage.
    """

    storage: storage_base.StorageBase
    folder: str
    bulk: BulkContent
    rank: int
    settings: KvSettings
    sizes: Sequence[int]
    """Bytes of a shard of each block."""

    def size(self, shard: int) -> int:
        return self.sizes[shard // self.settings.tp]

    def path(self, shard: int) -> str:
        return f"{self.folder}/{file_name(shard)}"

    def number(self, shard: int) -> int:
        """Return the number that identifies a shard in its stamps; unique across ranks."""
        return self.rank << _SHARD_BITS | shard

    def write(self, shard: int, buffer: memoryview) -> int:
        began_ns, made_ns = time.monotonic_ns(), 0
        writer = self.storage.create(self.path(shard))
        try:
            for offset, piece in self._pieces(shard, buffer):
                at_ns = time.monotonic_ns()
                self.bulk.fill(piece, self.number(shard), offset)
                made_ns += time.monotonic_ns() - at_ns
                writer.write(piece)
            if self.settings.option:
                writer.sync()
            writer.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                writer.discard()
            raise
        return time.monotonic_ns() - began_ns - made_ns

    def read(self, shard: int, buffer: memoryview) -> int:
        began_ns, checked_ns, path = time.monotonic_ns(), 0, self.path(shard)
        if self.settings.option and not self.storage.reads_nothing:
            self.storage.evict(path, write_first=False)
        with contextlib.closing(self.storage.open_sized(path, self.size(shard))) as reader:
            for offset, piece in self._pieces(shard, buffer):
                got = reader.read_into(piece, offset)
                at_ns = time.monotonic_ns()
                problem = self._problem(piece, shard, offset)
                problem = problem if got == len(piece) else f"it ends at {offset + got}"
                if problem and not self.storage.reads_nothing:
                    raise DlemuError(
                        f"{path} is not what was written there: {problem}; the storage lost or mixed up data"
                    )
                checked_ns += time.monotonic_ns() - at_ns
        return time.monotonic_ns() - began_ns - checked_ns

    def remove(self, shard: int, buffer: memoryview) -> int:
        self.storage.remove(self.path(shard))
        return 0

    def _pieces(self, shard: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
        size_bytes = self.size(shard)
        for offset in range(0, size_bytes, len(buffer)):
            yield offset, buffer[: min(len(buffer), size_bytes - offset)]

    def _problem(self, view: memoryview, shard: int, offset: int) -> str:
        """Check bytes read from a shard at `offset`; return what is wrong with them, or an empty string."""
        number = self.number(shard)
        offsets = np.arange(offset, offset + len(view), _STAMP_EVERY_BYTES, dtype=np.uint64)
        words = np.frombuffer(view, np.uint64).reshape(-1, _WORDS)
        # The stamp's first word is determined by the other three; not comparing it takes a third of the CPU.
        right = (words[:, 1] == self.bulk.seed_hash) & (words[:, 2] == number) & (words[:, 3] == offsets)
        if not right.all():
            at = offset + int(right.argmin()) * _STAMP_EVERY_BYTES
            return f"at byte {at} there is not the stamp of shard {number}"
        if self.settings.verify and (differs := self.bulk.first_difference(view, number, offset)) is not None:
            return f"byte {offset + differs} is not what was written"
        return ""


def file_name(shard: int) -> str:
    return f"{shard:010x}.kv"


class Operation(IntEnum):
    """What is done with an object, in order of priority."""

    READ, WRITE, REMOVE = range(3)


@dataclass(eq=False)
class Batch:
    """The objects that one prompt (official load: one worker) reads or writes, and how long that took."""

    operation: Operation
    owner: int
    """Index of the prompt in the rank's plan, or of the worker; -1 for removals."""
    objects: Sequence[int]
    left: int = 0
    call_ns: int = 0  # summed over shards
    ended_ns: int = 0  # when the last shard was done


class Mover:
    """A pool of threads, each with a buffer, that run until `close`.

    Queued reads go first, then writes, then removals, each in the order of their coming.
    """

    def __init__(self, blocks: Blocks, *, seconds: float) -> None:
        """Start the threads; a storage that completes nothing in `seconds` has hung."""
        settings = blocks.settings
        self._moves = {Operation.READ: blocks.read, Operation.WRITE: blocks.write, Operation.REMOVE: blocks.remove}
        self._tp, self._folder, self._seconds = settings.tp, settings.folder, seconds
        self._unwritten_shards = np.full(len(blocks.sizes), self._tp, np.int32)  # of each object
        self._waiting: tuple[deque[tuple[Batch, int]], ...] = tuple(deque() for _ in Operation)
        self._permits: SimpleQueue[None] = SimpleQueue()
        """A semaphore with one item per queued shard: a thread that gets one takes the shard of highest priority.
        (threading.Condition is pure Python, takes several times the CPU, and all threads contend for its lock.)"""
        self._counting = threading.Lock()
        self._done: SimpleQueue[Batch] = SimpleQueue()
        self._failure: BaseException | None = None
        self._closed = False
        self._submitted = self._finished = 0  # shards since the start
        self._last_done_ns = time.monotonic_ns()
        self.now_ns = time.monotonic_ns
        buffer_bytes = min(settings.transfer_size, max(blocks.sizes, default=ALIGNMENT))
        # One mapping for all buffers is large enough for huge pages; with 4 KiB pages, half of the CPU time of O_DIRECT
        # goes into looking up and pinning pages.
        page = _HUGE_PAGE if buffer_bytes >= _HUGE_PAGE else mmap.PAGESIZE
        stride = -(-buffer_bytes // page) * page
        buffers = AlignedBuffer(max(stride * settings.threads, _HUGE_PAGES_FROM_BYTES))
        buffers.take_pages()
        whole = buffers.view(stride * settings.threads)
        pieces = [whole[number * stride :][:buffer_bytes] for number in range(settings.threads)]
        self._threads = [threading.Thread(target=self._work, args=(piece,), daemon=True) for piece in pieces]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch) -> None:
        """Queue a batch; `wait` returns it once it is done, unless it is a removal. Called by one thread."""
        ops = [(batch, number * self._tp + shard) for number in batch.objects for shard in range(self._tp)]
        batch.left = len(ops)
        if self._submitted == self._finished:
            self._last_done_ns = time.monotonic_ns()
        self._submitted += len(ops)
        self._waiting[batch.operation].extend(ops)
        for _ in ops:
            self._permits.put(None)

    def is_written(self, number: int) -> bool:
        return not self._unwritten_shards[number]

    def wait(self, until_ns: int) -> Batch | None:
        """Return the next batch done, None at `until_ns`. Raises a thread's error, DlemuError if storage hangs."""
        while True:
            self._check()
            seconds = (until_ns - time.monotonic_ns()) / 1e9
            try:
                return self._done.get(timeout=max(0.0, min(seconds, _POLL_SECONDS)))
            except Empty:
                if seconds <= _POLL_SECONDS:
                    return None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        silent = (time.monotonic_ns() - self._last_done_ns) / 1e9
        if self._submitted > self._finished and silent > self._seconds:
            raise DlemuError(
                f"the storage of {self._folder} completed no block for {silent:.0f} s (timeout_seconds): a file system "
                "that hangs does this; see `df` and `dmesg`"
            )

    def close(self, seconds: float = 10.0) -> None:  # bounded, so that a hung storage does not block the end of the run
        """End the threads once each has finished its current shard; queued shards are dropped."""
        self._closed = True
        for _ in self._threads:
            self._permits.put(None)
        for thread in self._threads:
            thread.join(seconds)

    def _work(self, buffer: memoryview) -> None:
        try:
            while (op := self._take()) is not None:
                batch, shard = op
                self._finish(batch, shard, self._moves[batch.operation](shard, buffer))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                advice = "free some space, or limit each rank's share with kv.capacity_gb"
                self._failure = SpaceError(f"{error.strerror}, in {self._folder}: {advice}")
            else:
                what = f"{error.strerror or error} ({error.filename or f'in {self._folder}'})"
                self._failure = UserError(f"a block could not be moved: {what}")
        except BaseException as error:
            self._failure = error

    def _take(self) -> tuple[Batch, int] | None:
        self._permits.get()
        if self._closed:
            return None
        for queue in filter(None, self._waiting):  # skips empty queues, each of which would cost an exception
            with contextlib.suppress(IndexError):  # another thread was faster
                return queue.popleft()
        raise AssertionError("there are as many permits as queued shards")

    def _finish(self, batch: Batch, shard: int, call_ns: int) -> None:
        now_ns = time.monotonic_ns()
        with self._counting:
            self._finished += 1
            self._last_done_ns = now_ns
            if batch.operation is Operation.WRITE:
                self._unwritten_shards[shard // self._tp] -= 1
            batch.left -= 1
            batch.call_ns += call_ns
            batch.ended_ns = max(batch.ended_ns, now_ns)
            done = not batch.left
        if done and batch.operation is not Operation.REMOVE:
            self._done.put(batch)
