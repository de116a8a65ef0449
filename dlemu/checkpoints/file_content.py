"""The bytes of a checkpoint's file: the format's literals (headers, names, padding) over generated tensor content.

Each 4096-byte block of generated content has a stamp (seed hash, file number, offset), which tells a reader to which
file and offset the block belongs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from datagen.content import STAMP_BYTES, BulkContent, Pattern, identify
from datagen.spec import BLOCK_BYTES
from dlemu.checkpoints.shards import FileLayout
from dlemu.config.schema import Checkpoint

_RANK_BITS, _FILE_BITS = 24, 20  # 16 million ranks, a million files each; 20 of 64 bits remain for the checkpoint


@dataclass(frozen=True)
class FileContent:
    """Generates and checks the bytes of one file of a checkpoint."""

    path: str
    layout: FileLayout
    bulk: BulkContent
    number: int
    """Number of the file in its stamps, unique among all checkpoints of a run."""

    @property
    def size_bytes(self) -> int:
        return self.layout.size_bytes

    def fill(self, buffer: memoryview | NDArray[np.uint8], offset: int) -> None:
        """Fill `buffer` with the file's bytes from `offset` on."""
        self.bulk.fill(buffer, self.number, offset)
        target = np.frombuffer(buffer, np.uint8)
        end = offset + target.size
        for literal_offset, literal in self._literals(offset, end):
            start = max(literal_offset, offset)
            overlap = literal[start - literal_offset : end - literal_offset]
            target[start - offset : start - offset + len(overlap)] = np.frombuffer(overlap, np.uint8)

    def content_problem(self, data: memoryview, offset: int, scratch: NDArray[np.uint8]) -> str:
        """Compare all `data` read at `offset`; return the problem, or ''. `scratch` is at least as large as `data`."""
        expected = scratch[: len(data)]
        self.fill(expected, offset)
        actual = np.frombuffer(data, np.uint8)
        if np.array_equal(actual, expected):
            return ""
        first = int((actual != expected).argmax())
        return f"byte {offset + first} is not what was written"

    def stamp_problem(self, data: memoryview, offset: int) -> str:
        """Check only the first stamp in `data`, read at a multiple of 4096; return the problem, or ''."""
        if not self.bulk.is_stamped:
            return ""
        for index in range(0, len(data) - STAMP_BYTES + 1, BLOCK_BYTES):
            if any(self._literals(offset + index, offset + index + STAMP_BYTES)):
                continue  # a literal overwrites the stamp of this block
            stamp = identify(data[index : index + STAMP_BYTES])
            if stamp is None:
                return "the bytes there were not written by dlemu"
            if stamp.seed_hash != self.bulk.seed_hash:
                return "it holds bytes of another run's checkpoint"
            if (stamp.file, stamp.offset) != (self.number, offset + index):
                return "it holds bytes of another file, or of another place in this one"
            return ""
        return ""

    def _literals(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the literals that overlap bytes `begin` to `end` (exclusive) of the file."""
        literals = self.layout.literals
        first = max(0, bisect_left(literals, begin, key=lambda literal: literal[0]) - 1)
        for offset, literal in literals[first:]:
            if offset >= end:
                return
            if offset + len(literal) > begin:
                yield offset, literal


def files_of(
    folder: str, layouts: Sequence[FileLayout], settings: Checkpoint, seed: int, *, checkpoint: int, rank: int
) -> list[FileContent]:
    """Return a rank's files of one checkpoint: with random bytes, or ones if `checkpoint.randomize_tensor` is off."""
    files = []
    for index, layout in enumerate(layouts):
        is_half = bool(layout.tensors) and layout.tensors[0][1].dtype in ("fp16", "bf16")
        ones: Pattern = "ones_fp16" if is_half else "ones_fp32"
        bulk = _bulk(seed, "random" if settings.randomize_tensor else ones)
        number = (checkpoint << _RANK_BITS | rank) << _FILE_BITS | index
        files.append(FileContent(f"{folder}/{layout.path}", layout, bulk, number))
    return files


@lru_cache(2)
def _bulk(seed: int, pattern: Pattern) -> BulkContent:
    """Return the generator that all files of a run share, because making one costs as much as filling some MB."""
    return BulkContent(seed, pattern)
