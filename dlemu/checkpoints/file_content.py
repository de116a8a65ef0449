"""What every byte of a checkpoint's file is: the format's own, and between them content that names run and file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from datagen.bulk_content import BulkContent, Pattern
from datagen.content import STAMP_BYTES, find_stamps, identify
from datagen.spec import BLOCK_BYTES
from dlemu.checkpoints.file_layout import FileLayout
from dlemu.config.schema import Checkpoint

_RANK_BITS, _FILE_BITS = 24, 20  # 16 million ranks, a million files each; 20 bits are left for checkpoints
_HALF = ("fp16", "bf16")


@dataclass(frozen=True)
class FileNumber:
    """Which file of a run's checkpoints one is; as one number it is in each of its blocks."""

    checkpoint: int
    """0 where all checkpoints have the same bytes."""
    rank: int
    """Of the job."""
    file: int
    """Among the rank's, from 0."""

    def __int__(self) -> int:
        return (self.checkpoint << _RANK_BITS | self.rank) << _FILE_BITS | self.file

    @classmethod
    def of(cls, number: int) -> FileNumber:
        """Return what a number says."""
        rest, file = divmod(number, 1 << _FILE_BITS)
        checkpoint, rank = divmod(rest, 1 << _RANK_BITS)
        return cls(checkpoint, rank, file)

    def __str__(self) -> str:
        which = f"checkpoint {self.checkpoint}, " if self.checkpoint else ""
        return f"{which}rank {self.rank}, file {self.file}"


@dataclass(frozen=True)
class FileContent:
    """The bytes of one file."""

    layout: FileLayout
    bulk: BulkContent
    number: FileNumber

    def fill(self, buffer: memoryview | NDArray[np.uint8], offset: int) -> None:
        """Write the file's bytes from `offset` on into all of `buffer`."""
        self.bulk.fill(buffer, int(self.number), offset)
        target = np.frombuffer(buffer, np.uint8)
        for at, data in self._literals(offset, offset + target.size):
            first = max(at, offset)
            piece = data[first - at : offset + target.size - at]
            target[first - offset : first - offset + len(piece)] = np.frombuffer(piece, np.uint8)

    def difference(self, data: memoryview, offset: int, scratch: NDArray[np.uint8]) -> str:
        """Return what is wrong with the file's bytes at `offset`, or nothing; `scratch` is as large."""
        wanted = scratch[: len(data)]
        self.fill(wanted, offset)
        actual = np.frombuffer(data, np.uint8)
        if np.array_equal(actual, wanted):
            return ""
        at = int((actual != wanted).argmax())
        return f"byte {offset + at} is not what was written: {self._explain(data, at)}"

    def stamp_problem(self, data: memoryview, offset: int) -> str:
        """Say whose bytes these are if the first stamp in them is not this file's; nothing where it is.

        `offset` is a multiple of 4096. Where the format's own bytes cover every stamp there is nothing to report.
        """
        if not self.bulk.is_stamped:
            return ""
        for at in range(0, len(data) - STAMP_BYTES + 1, BLOCK_BYTES):
            if any(self._literals(offset + at, offset + at + STAMP_BYTES)):
                continue
            stamp = identify(data[at : at + STAMP_BYTES])
            mine = self.bulk.seed_hash, int(self.number), offset + at
            if stamp is not None and (stamp.seed_hash, stamp.file, stamp.offset) == mine:
                return ""
            return self._explain(data, at)
        return ""

    def _explain(self, data: memoryview, at: int) -> str:
        first = max(0, at - BLOCK_BYTES + 1)
        stamps = find_stamps(data[first : at + BLOCK_BYTES]) if self.bulk.is_stamped else []
        if not stamps:
            return "the bytes there were not written by dlemu"
        stamp = stamps[-1][1] if stamps[-1][0] <= at - first else stamps[0][1]
        if stamp.seed_hash != self.bulk.seed_hash:
            return "it holds bytes of another run's checkpoint"
        if stamp.file != int(self.number):
            return f"it holds the bytes of {FileNumber.of(stamp.file)}, wanted {self.number}"
        return f"it holds bytes of this file's offset {stamp.offset} that were changed or are in the wrong place"

    def _literals(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        literals = self.layout.literals
        first = max(0, bisect_left(literals, begin, key=lambda literal: literal[0]) - 1)
        for at, data in literals[first:]:
            if at >= end:
                return
            if at + len(data) > begin:
                yield at, data


def content_of(layout: FileLayout, settings: Checkpoint, seed: int, number: FileNumber) -> FileContent:
    """Return the bytes of one file, as `checkpoint.content` says."""
    if settings.content != "unique" or not settings.randomize_tensor:
        number = FileNumber(0, number.rank, number.file)
    return FileContent(layout, _bulk(seed, _pattern(layout, settings)), number)


@lru_cache(2)
def _bulk(seed: int, pattern: Pattern) -> BulkContent:
    """Return the content of a run's files: they share the pool, which takes as much to draw as some MB to make."""
    return BulkContent(seed, pattern)


def _pattern(layout: FileLayout, settings: Checkpoint) -> Pattern:
    half = bool(layout.tensors) and layout.tensors[0][1].dtype in _HALF
    if not settings.randomize_tensor:
        return "ones_fp16" if half else "ones_fp32"
    if settings.content == "torch_rand":
        return "uniform_fp16" if half else "uniform_fp32"
    return "random"
