"""The bytes of samples (`Content`) and checkpoints (`BulkContent`): unique, seeded, checkable, at memory speed.

A file's payload is cut into blocks of 4096 bytes. Block b of file f under a seed is row b % 64 of a pool of random
words (256 KiB, so it stays in a core's cache), every word XORed with the block's own 64-bit key, and the first 32 bytes
replaced by a stamp of five fields, little-endian:

    magic (4 bytes), check (4), hash of the seed (8), running index of the file (8), offset of the block (8)

The stamps make all blocks of a dataset different; the keys do the same for any 4096 bytes that begin within a block.
For compressible data, the last words of each row are zero before the key is applied, so that the block ends with a
repeated 8-byte word, which any compressor removes. The rest has no repetition, because rows recur with another key.

Checkpoint files have the same stamps, but one key for each MiB, and a pool of 1 MiB. Filling memory with them takes one
pass, about 30 GB/s on a core: three times as fast as for samples, and faster than any storage. Here, too, all blocks
differ, and no compressor finds a repetition, whatever the size of its window.
"""

from __future__ import annotations

import abc
import functools
import re
import struct
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import round_up
from datagen.spec import BLOCK_BYTES

CONTENT_VERSION = 1  # incremented whenever the same seed, file and offset would give different bytes in a sample
BULK_VERSION = 1  # the same for checkpoints
MAGIC = 0x4D454C44  # the bytes `DLEM` at the start of each block
STAMP_BYTES = 32
BLOCK_WORDS = BLOCK_BYTES // 8
STAMP_WORDS = STAMP_BYTES // 8
POOL_ROWS = 64  # blocks of the pool for samples: 256 KiB, which stay in a core's cache
BATCH_BLOCKS = 1024  # blocks whose keys are computed together: enough to amortise the cost of numpy calls
PIECE_BYTES = 1 << 20  # bytes of a checkpoint that share a key, and size of its pool
_PIECE_WORDS = PIECE_BYTES // 8
_CACHED_MULTIPLE = 256  # `_offsets` caches arrays of multiples of this length, for files of similar sizes to share

Pattern = Literal["random", "ones_fp16", "ones_fp32"]
"""`random`: incompressible; `ones`: constant."""
Words = NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's increment: 2^64 / the golden ratio
FACTOR_1, FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64's finaliser
# The same numbers as arrays of shape (), because numpy takes twice as long for its scalars
_GOLDEN, _FACTOR_1, _FACTOR_2, _SHIFT_27, _SHIFT_30, _SHIFT_31, _UPPER, _MAGIC = (
    np.array(number, np.uint64) for number in (GOLDEN, FACTOR_1, FACTOR_2, 27, 30, 31, 0xFFFFFFFF00000000, MAGIC)
)
_MASK = (1 << 64) - 1
_STAMP = struct.Struct("<4Q")


def _mix(words: Words) -> Words:
    """Return splitmix64's finaliser of each word: a bijection that spreads every bit (Steele, Lea, Flood 2014)."""
    words = words ^ (words >> _SHIFT_30)
    words *= _FACTOR_1  # in place: new arrays cost more than the arithmetic
    words ^= words >> _SHIFT_27
    words *= _FACTOR_2
    words ^= words >> _SHIFT_31
    return words


def mix_number(number: int) -> int:
    """Return what `_mix` does for one word, `number` modulo 2^64. numpy would take ten times as long for it."""
    word = number & _MASK
    word = ((word ^ (word >> 30)) * FACTOR_1) & _MASK
    word = ((word ^ (word >> 27)) * FACTOR_2) & _MASK
    return word ^ (word >> 31)


def _file_key(seed_hash: int, file: int) -> int:
    """Return the number from which the keys of a file's blocks are derived. No two files have the same one."""
    return mix_number(seed_hash ^ mix_number(file + GOLDEN))


@dataclass(frozen=True)
class Stamp:
    """The dataset (seed), file and block that a stamp names."""

    seed_hash: int
    file: int  # running index of the file
    offset: int  # offset of the block in the file's payload, in bytes


def write_stamps(blocks: Words, seed_hash: int, file: int, first_block: int) -> None:
    """Write the stamps of consecutive blocks of a file's payload, from block `first_block` on.

    `blocks` has the shape (blocks, words of a block). Half of word 0 is the magic, half a check of the other words.
    """
    offsets, offset_hashes = _offsets(first_block, round_up(len(blocks), _CACHED_MULTIPLE))
    first_words = _mix(np.uint64(seed_hash) + _mix(np.uint64(file) + offset_hashes[: len(blocks)]))
    first_words &= _UPPER
    first_words |= _MAGIC
    blocks[:, 0] = first_words
    blocks[:, 1] = seed_hash
    blocks[:, 2] = file
    blocks[:, 3] = offsets[: len(blocks)]


@functools.lru_cache(64)  # most files are written from the beginning, in chunks of one size
def _offsets(first_block: int, count: int) -> tuple[Words, Words]:
    """Return the offsets of blocks, and their hashes, which are the part of a stamp's check common to all files."""
    offsets = np.arange(first_block, first_block + count, dtype=np.uint64) * np.uint64(BLOCK_BYTES)
    return offsets, _mix(offsets + _GOLDEN)


def identify(block: memoryview | bytes) -> Stamp | None:
    """Return the stamp at the start of a block; None if its first 32 bytes are no valid stamp."""
    if len(block) < STAMP_BYTES:
        return None
    first_word, seed_hash, file, offset = _STAMP.unpack_from(block)
    stamp_hash = mix_number(seed_hash + mix_number(file + mix_number(offset + GOLDEN)))  # as in `write_stamps`
    if first_word != stamp_hash & 0xFFFFFFFF00000000 | MAGIC:
        return None
    return Stamp(seed_hash=seed_hash, file=file, offset=offset)


def find_stamps(data: memoryview | bytes) -> list[tuple[int, Stamp]]:
    """Return (index, stamp) of every stamp in `data`, at any alignment."""
    view = bytes(data)
    starts = (match.start() for match in re.finditer(MAGIC.to_bytes(4, "little"), view))
    stamps = ((start, identify(view[start : start + STAMP_BYTES])) for start in starts)
    return [(start, stamp) for start, stamp in stamps if stamp is not None]


@dataclass(frozen=True)
class StampedContent(abc.ABC):
    """The bytes of files as a pure function of (running index of the file, offset), written in whole blocks."""

    compared_bytes: ClassVar[int]  # bytes generated together for a comparison: they stay in a core's cache
    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the pool: the process that uses it builds it anew."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @functools.cached_property
    def seed_hash(self) -> int:
        """Hash of the seed; it is in every stamp, and tells the blocks of one dataset or run from those of another."""
        return mix_number(self.seed + GOLDEN)

    @abc.abstractmethod
    def write_blocks(self, blocks: Words, file: int, first_block: int) -> None:
        """Fill an array of shape (blocks, words of a block) with the blocks of `file` from `first_block` on."""

    def fill(self, out: memoryview | NDArray[np.uint8], file: int, offset: int) -> None:
        """Fill `out` with the payload of `file` from `offset` on; fastest for whole blocks."""
        target = np.frombuffer(out, np.uint8)
        start = min(-offset % BLOCK_BYTES, target.size)  # of the whole blocks; the end of another block precedes them
        if start:
            block = self._new_blocks(file, offset // BLOCK_BYTES, 1)
            skipped = offset % BLOCK_BYTES
            target[:start] = block[skipped : skipped + start]
        first_block = (offset + start) // BLOCK_BYTES
        count = (target.size - start) // BLOCK_BYTES
        end = start + count * BLOCK_BYTES
        words = target[start:end].view(np.uint64)
        if words.flags.aligned:
            self.write_blocks(words.reshape(count, BLOCK_WORDS), file, first_block)
        else:
            target[start:end] = self._new_blocks(file, first_block, count)
        if end < target.size:
            target[end:] = self._new_blocks(file, first_block + count, 1)[: target.size - end]

    def first_difference(self, data: memoryview | NDArray[np.uint8], file: int, offset: int) -> int | None:
        """Compare `data` with the payload from `offset` on; return the index of the first difference, or None."""
        actual = np.frombuffer(data, np.uint8)
        expected = np.empty(min(self.compared_bytes, actual.size), np.uint8)
        start = 0
        while start < actual.size:
            # The first chunk ends where a block ends, so that all later chunks begin with a block
            size = min(self.compared_bytes - (offset + start) % BLOCK_BYTES, actual.size - start)
            self.fill(expected[:size], file, offset + start)
            differs = actual[start : start + size] != expected[:size]
            if differs.any():
                return start + int(differs.argmax())
            start += size
        return None

    def _new_blocks(self, file: int, first_block: int, count: int) -> NDArray[np.uint8]:
        """Return the bytes of whole blocks in new memory."""
        blocks = np.empty((count, BLOCK_WORDS), np.uint64)
        self.write_blocks(blocks, file, first_block)
        return blocks.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Content(StampedContent):
    """The payload of every file of a dataset, as a pure function of (seed, running file index, offset)."""

    compared_bytes = POOL_ROWS * BLOCK_BYTES

    compressibility: float = 0.0  # share of each block that a compressor removes, 0 to below 1

    @functools.cached_property
    def _pool(self) -> Words:
        # Raw words of a bit generator are stable across numpy versions; Generator.integers is not promised to be
        words: Words = np.random.SFC64([MAGIC, self.seed]).random_raw(POOL_ROWS * BLOCK_WORDS)
        pool = words.reshape(POOL_ROWS, BLOCK_WORDS)
        removable = min(round(self.compressibility * BLOCK_WORDS), BLOCK_WORDS - STAMP_WORDS)
        pool[:, BLOCK_WORDS - removable :] = 0
        return pool

    def write_blocks(self, blocks: Words, file: int, first_block: int) -> None:
        for start in range(0, len(blocks), BATCH_BLOCKS):
            batch = blocks[start : start + BATCH_BLOCKS]
            batch_start = first_block + start
            offsets = np.arange(batch_start, batch_start + len(batch), dtype=np.uint64) * np.uint64(BLOCK_BYTES)
            keys = _mix(np.uint64(_file_key(self.seed_hash, file)) + offsets * _GOLDEN).reshape(-1, 1)
            begin = 0
            while begin < len(batch):  # each time as many blocks as there are rows up to the end of the pool
                row = (batch_start + begin) % POOL_ROWS
                count = min(POOL_ROWS - row, len(batch) - begin)
                rows = batch[begin : begin + count]
                np.bitwise_xor(self._pool[row : row + count], keys[begin : begin + count], out=rows)
                write_stamps(rows, self.seed_hash, file, batch_start + begin)  # now, while the blocks are in the cache
                begin += count


@dataclass(frozen=True)
class BulkContent(StampedContent):
    """The bytes of every checkpoint file of a run, as a pure function of (seed, number of the file, offset)."""

    compared_bytes = PIECE_BYTES

    pattern: Pattern = "random"

    @property
    def is_stamped(self) -> bool:
        """Whether every block begins with a stamp; `ones` have none."""
        return not self.pattern.startswith("ones")

    @functools.cached_property
    def _pool(self) -> Words:
        if self.pattern == "ones_fp16":
            return np.ones(PIECE_BYTES // 2, np.float16).view(np.uint64)
        if self.pattern == "ones_fp32":
            return np.ones(PIECE_BYTES // 4, np.float32).view(np.uint64)
        words: Words = np.random.SFC64([MAGIC, self.seed]).random_raw(_PIECE_WORDS)
        return words

    def write_blocks(self, blocks: Words, file: int, first_block: int) -> None:
        words = blocks.reshape(-1)
        begin = 0
        while begin < len(words):  # each time the rest of a piece, which has one key
            piece, start = divmod(first_block * BLOCK_WORDS + begin, _PIECE_WORDS)
            count = min(_PIECE_WORDS - start, len(words) - begin)
            key = mix_number(_file_key(self.seed_hash, file) + piece * GOLDEN) if self.is_stamped else 0
            np.bitwise_xor(self._pool[start : start + count], np.uint64(key), out=words[begin : begin + count])
            begin += count
        if self.is_stamped:
            write_stamps(blocks, self.seed_hash, file, first_block)


def explain(data: memoryview | bytes, index: int, content: Content, file: int) -> str:
    """Return a phrase that says what `data` has at `index` instead of the content of `file`."""
    first = max(0, index - BLOCK_BYTES + 1)
    stamps = find_stamps(data[first : index + STAMP_BYTES])
    covering = [stamp for start, stamp in stamps if first + start <= index]
    if not covering:
        return "the bytes there have no dlemu stamp"
    stamp = covering[-1]
    origin = f"file number {stamp.file}, payload offset {stamp.offset}"
    if stamp.seed_hash != content.seed_hash:
        return f"there is a block of another dataset ({origin})"
    if stamp.file != file:
        return f"there is a block of {origin}"
    return f"there is a block stamped {origin}, but its bytes or its position are wrong"
