"""The bytes of checkpoint files: unique, checkable, and generated three times as fast as those of samples.

The stamps are those of `datagen.content`: the first 32 bytes of every 4096 name the run, the file and the offset. The
rest of a MiB is a pool of 1 MiB, every 64-bit word XORed with one key of that MiB: one pass of the processor over the
memory, about 30 GB/s on a core, faster than any storage. No two blocks of a file, of two files or of two checkpoints
are equal. A compressor that looks back less than 1 MiB finds no repetition; a compressor that looks further back finds
none either, because each MiB has another key.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datagen.content import BLOCK_WORDS, MAGIC, StampedContent, Words, key_of, write_stamps

BULK_VERSION = 1  # incremented whenever the same seed, file and offset would give different bytes
PIECE_BYTES = 1 << 20  # bytes that share a key, and size of the pool

Pattern = Literal["random", "uniform_fp16", "uniform_fp32", "ones_fp16", "ones_fp32"]
"""`random`: incompressible; `uniform`: numbers in [0, 1) as of `torch.rand`, partly compressible; `ones`: constant."""

_PIECE_WORDS = PIECE_BYTES // 8


@dataclass(frozen=True)
class BulkContent(StampedContent):
    """The bytes of every file of a run, as a pure function of (seed, number of the file, offset)."""

    compared_bytes = PIECE_BYTES

    seed: int
    pattern: Pattern = "random"

    def __reduce__(self) -> tuple[Any, ...]:
        return BulkContent, (self.seed, self.pattern)  # the pool is rebuilt by the process that uses it

    @property
    def is_stamped(self) -> bool:
        """Whether every block begins with a stamp; `ones` have none."""
        return not self.pattern.startswith("ones")

    @functools.cached_property
    def _pool(self) -> NDArray[np.uint64]:
        words: NDArray[np.uint64] = np.random.SFC64([MAGIC, self.seed]).random_raw(_PIECE_WORDS)
        distribution, _, type_name = self.pattern.partition("_")
        if distribution == "random":
            return words
        element_type: type[np.floating[Any]] = np.float16 if type_name == "fp16" else np.float32
        element_bytes = np.dtype(element_type).itemsize
        if distribution == "ones":
            return np.ones(PIECE_BYTES // element_bytes, element_type).view(np.uint64)
        # As many random bits as the mantissa holds: exact, and below 1
        bits = np.finfo(element_type).nmant + 1
        draws = words.view(f"u{element_bytes}") >> (8 * element_bytes - bits)
        return (draws.astype(np.float64) / (1 << bits)).astype(element_type).view(np.uint64)

    def write_blocks(self, blocks: Words, file: int, first: int) -> None:
        words = blocks.reshape(-1)
        done = 0
        while done < len(words):
            piece, start = divmod(first * BLOCK_WORDS + done, _PIECE_WORDS)
            count = min(_PIECE_WORDS - start, len(words) - done)
            key = self._key(file, piece)
            np.bitwise_xor(self._pool[start : start + count], key, out=words[done : done + count])
            done += count
        if self.is_stamped:
            write_stamps(blocks, self.seed_hash, file, first)

    def _key(self, file: int, piece: int) -> np.uint64:
        """Return what every word of a piece is XORed with."""
        if not self.is_stamped:
            return np.uint64(0)
        key = key_of(self.seed_hash, file, piece)
        # Elements of a word have the same key, so that the numbers stay as compressible as before
        if self.pattern == "uniform_fp16":
            key = (key & 0xFFFF) * 0x0001000100010001
        elif self.pattern == "uniform_fp32":
            key = (key & 0xFFFFFFFF) * 0x100000001
        return np.uint64(key)
