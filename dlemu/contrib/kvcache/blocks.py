"""Blocks on storage: their bytes, and how their shards are written, read, checked and removed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import BulkContent, DlemuError, storage_base

_SHARD_BITS = 40  # of the 64 in a stamp; the other 24 hold the rank: 16 million ranks with 10^12 shards each
_STAMP_EVERY_BYTES = 4096  # as `BulkContent` has it
_WORDS = _STAMP_EVERY_BYTES // 8


class Shard(NamedTuple):
    """The part of one block that one accelerator stores."""

    object: int
    """Number of the block on storage, counted in the order of writing."""
    shard: int
    """Index of the accelerator, 0 to `kv.tp` - 1."""


@dataclass(frozen=True)
class Content:
    """The bytes of a rank's shards: unique, checkable, and generated at memory speed (`datagen.bulk_content`)."""

    bulk: BulkContent
    rank: int
    settings: KvSettings

    def number(self, shard: Shard) -> int:
        """Return the number that identifies a shard in its stamps; unique across ranks."""
        return self.rank << _SHARD_BITS | (shard.object * self.settings.tp + shard.shard)

    def fill(self, view: memoryview, shard: Shard, offset: int) -> None:
        self.bulk.fill(view, self.number(shard), offset)

    def problem(self, view: memoryview, shard: Shard, offset: int) -> str:
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


def _pieces(size_bytes: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
    for offset in range(0, size_bytes, len(buffer)):
        yield offset, buffer[: min(len(buffer), size_bytes - offset)]


@dataclass(frozen=True)
class Blocks:
    """A file, or an object, per shard: written under a temporary name, then renamed, without fsync, as engines do.

    Shared by threads. `write` and `read` return the nanoseconds spent in calls; they raise OSError, DlemuError for
    damage.
    """

    storage: storage_base.StorageBase
    folder: str
    content: Content
    shard_bytes: int
    sizes: Sequence[int] = ()
    """Bytes of a shard of each object, if objects differ in size; empty: all have `shard_bytes`."""
    synced: bool = False
    """As the official tool does: fsync each file, and drop it from the page cache before each read."""

    def size(self, shard: Shard) -> int:
        return self.sizes[shard.object] if self.sizes else self.shard_bytes

    def path(self, shard: Shard) -> str:
        return f"{self.folder}/{file_name(shard, self.content.settings.tp)}"

    def write(self, shard: Shard, buffer: memoryview) -> int:
        began_ns, made_ns = time.monotonic_ns(), 0
        writer = self.storage.create(self.path(shard))
        try:
            for offset, piece in _pieces(self.size(shard), buffer):
                at_ns = time.monotonic_ns()
                self.content.fill(piece, shard, offset)
                made_ns += time.monotonic_ns() - at_ns
                writer.write(piece)
            if self.synced:
                writer.sync()
            writer.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                writer.discard()
            raise
        return time.monotonic_ns() - began_ns - made_ns

    def read(self, shard: Shard, buffer: memoryview) -> int:
        began_ns, checked_ns, path = time.monotonic_ns(), 0, self.path(shard)
        if self.synced and not self.storage.reads_nothing:
            self.storage.evict(path, write_first=False)
        # An object that fits into the buffer is read by one request, as by engines, which know its size.
        fits = self.size(shard) <= len(buffer)
        reader = (self.storage.open_whole if fits else self.storage.open)(path)
        try:
            for offset, piece in _pieces(self.size(shard), buffer):
                got = reader.read_into(piece, offset)
                at_ns = time.monotonic_ns()
                problem = self.content.problem(piece, shard, offset)
                if not self.storage.reads_nothing:
                    _raise_if_damaged(path, problem if got == len(piece) else f"it ends at {offset + got}")
                checked_ns += time.monotonic_ns() - at_ns
        finally:
            reader.close()
        return time.monotonic_ns() - began_ns - checked_ns

    def remove(self, number: int) -> None:
        for shard in range(self.content.settings.tp):
            self.storage.remove(self.path(Shard(number, shard)))


def _raise_if_damaged(path: str, problem: str) -> None:
    if problem:
        raise DlemuError(f"{path} is not what was written there: {problem}; the storage lost or mixed up data")


def file_name(shard: Shard, tp: int) -> str:
    return f"{shard.object * tp + shard.shard:010x}.kv"
