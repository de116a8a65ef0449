"""Blocks on storage: the bytes of their shards, and how these are written, read, checked and removed.

Shard s is the part of block s // kv.tp that accelerator s % kv.tp stores; blocks are numbered in the order of writing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import BulkContent, DlemuError, storage_base

_SHARD_BITS = 40  # of the 64 in a stamp; the other 24 hold the rank: 16 million ranks with 10^12 shards each
_STAMP_EVERY_BYTES = 4096  # as `BulkContent` has it
_WORDS = _STAMP_EVERY_BYTES // 8


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
        # An object that fits into the buffer is read by one request, as by engines, which know its size.
        fits = self.size(shard) <= len(buffer)
        reader = (self.storage.open_whole if fits else self.storage.open)(path)
        try:
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
        finally:
            reader.close()
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
