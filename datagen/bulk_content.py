"""The bytes of checkpoint files: unique, checkable, and generated three times as fast as those of samples.

The stamps are those of `datagen.content`: the first 32 bytes of every 4096 name the run, the file and the offset. The
rest of a MiB is a pool of 1 MiB, every 64-bit word XORed with one key of that MiB: one pass of the processor over the
memory, about 30 GB/s on a core, faster than any storage. No two blocks of a file, of two files or of
two checkpoints are equal, and no compressor that looks back less than 1 MiB finds a repetition; one that looks further
finds none either, for each MiB has another key.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datagen.content import MAGIC, hash_of_seed, key_of, write_stamps
from datagen.spec import BLOCK_BYTES

BULK_VERSION = 1  # incremented whenever the same seed, file and offset would give different bytes
PIECE_BYTES = 1 << 20  # bytes that have one key, and size of the pool

Pattern = Literal["random", "uniform_fp16", "uniform_fp32", "ones_fp16", "ones_fp32"]
"""`random`: incompressible; `uniform`: numbers in [0, 1) as of `torch.rand`, partly compressible; `ones`: constant."""

_BLOCK_WORDS = BLOCK_BYTES // 8
_PIECE_WORDS = PIECE_BYTES // 8
_TYPES: dict[str, type[np.floating[Any]]] = {"fp16": np.float16, "fp32": np.float32}


@dataclass(frozen=True)
class BulkContent:
    """The bytes of every file of a run, as a pure function of (seed, number of the file, offset)."""

    seed: int
    pattern: Pattern = "random"

    def __reduce__(self) -> tuple[Any, ...]:
        return BulkContent, (self.seed, self.pattern)  # the pool is rebuilt by the process that uses it

    @functools.cached_property
    def seed_hash(self) -> int:
        """Hash of the seed that every stamp holds, to recognise this run's blocks."""
        return hash_of_seed(self.seed)

    @property
    def is_stamped(self) -> bool:
        """Whether every block begins with a stamp; `ones` have none."""
        return not self.pattern.startswith("ones")

    @functools.cached_property
    def _pool(self) -> NDArray[np.uint64]:
        words: NDArray[np.uint64] = np.random.SFC64([MAGIC, self.seed]).random_raw(_PIECE_WORDS)
        kind, _, name = self.pattern.partition("_")
        if kind == "random":
            return words
        element = _TYPES[name]
        count = PIECE_BYTES // np.dtype(element).itemsize
        if kind == "ones":
            return np.ones(count, element).view(np.uint64)
        # As many random bits as the mantissa holds: exact, and below 1
        bits = np.finfo(element).nmant + 1
        draws = words.view(f"u{np.dtype(element).itemsize}") >> (8 * np.dtype(element).itemsize - bits)
        return (draws.astype(np.float64) / (1 << bits)).astype(element).view(np.uint64)

    def fill(self, out: memoryview | NDArray[np.uint8], file: int, offset: int) -> None:
        """Fill `out` with the bytes of `file` from `offset` on; fastest from a block boundary into aligned memory."""
        target = np.frombuffer(out, np.uint8)
        head, whole = offset % BLOCK_BYTES, target.size // BLOCK_BYTES * BLOCK_BYTES
        if head or not target[:whole].view(np.uint64).flags.aligned:
            blocks = np.empty(-(-(head + target.size) // BLOCK_BYTES) * _BLOCK_WORDS, np.uint64)
            self._fill_blocks(blocks, file, offset - head)
            target[:] = blocks.view(np.uint8)[head : head + target.size]
            return
        if whole:
            self._fill_blocks(target[:whole].view(np.uint64), file, offset)
        if whole < target.size:
            block = np.empty(_BLOCK_WORDS, np.uint64)
            self._fill_blocks(block, file, offset + whole)
            target[whole:] = block.view(np.uint8)[: target.size - whole]

    def first_difference(self, data: memoryview | NDArray[np.uint8], file: int, offset: int) -> int | None:
        """Compare `data` with the file's bytes from `offset` on; return the index of the first difference, or None."""
        actual = np.frombuffer(data, np.uint8)
        wanted = np.empty(min(PIECE_BYTES, actual.size), np.uint8)
        for start in range(0, actual.size, PIECE_BYTES):
            piece = actual[start : start + PIECE_BYTES]
            self.fill(wanted[: piece.size], file, offset + start)
            differs = piece != wanted[: piece.size]
            if differs.any():
                return start + int(differs.argmax())
        return None

    def _fill_blocks(self, words: NDArray[np.uint64], file: int, offset: int) -> None:
        done = 0
        while done < len(words):
            at = offset // 8 + done
            start = at % _PIECE_WORDS
            count = min(_PIECE_WORDS - start, len(words) - done)
            key = self._key(file, at // _PIECE_WORDS)
            np.bitwise_xor(self._pool[start : start + count], key, out=words[done : done + count])
            done += count
        if self.is_stamped:
            write_stamps(words.reshape(-1, _BLOCK_WORDS), self.seed_hash, file, offset // BLOCK_BYTES)

    def _key(self, file: int, piece: int) -> np.uint64:
        """Return what every word of a piece is XORed with."""
        key = key_of(self.seed_hash, file, piece)
        if self.pattern != "random":
            # One key for all elements of a word, so that the data stays as compressible as before
            lowest, every = (0xFFFF, 0x0001000100010001) if self.pattern.endswith("fp16") else (0xFFFFFFFF, 0x100000001)
            key = (key & lowest) * (every if self.is_stamped else 0)
        return np.uint64(key)
