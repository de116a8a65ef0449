"""A checkpoint's bytes are unique, the same wherever a read begins, and say whose they are."""

from __future__ import annotations

import pickle
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.bulk_content import PIECE_BYTES, BulkContent, Pattern

CONTENT = BulkContent(7)
WHOLE = np.empty(2 * PIECE_BYTES + 5000, np.uint8)
CONTENT.fill(WHOLE, 3, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 300_000), st.integers(0, 9))
def test_any_stretch_is_that_of_the_whole(start: int, size: int, shift: int) -> None:
    memory = np.empty(size + shift, np.uint8)
    CONTENT.fill(memory[shift:], 3, start)
    wanted = WHOLE[start : start + size]
    assert np.array_equal(memory[shift : shift + len(wanted)], wanted)


def test_the_bytes_never_change() -> None:
    # Changing these bytes takes a new BULK_VERSION: checkpoints written before would no longer verify.
    assert zlib.crc32(WHOLE.tobytes()) == 0xCC9FB2CA
    later = np.empty(3 * PIECE_BYTES + 9000, np.uint8)
    BulkContent(1, "uniform_fp16").fill(later, 5, PIECE_BYTES // 2 + 777)  # as much before whole pieces as behind
    assert zlib.crc32(later.tobytes()) == 0xC32740BB


def test_no_two_blocks_are_equal_and_no_compressor_finds_anything() -> None:
    other = np.empty_like(WHOLE)
    CONTENT.fill(other, 4, 0)
    blocks = {bytes(data[at : at + 512]) for data in (WHOLE, other) for at in range(0, 2 * PIECE_BYTES, 512)}
    assert len(blocks) == 2 * 2 * PIECE_BYTES // 512
    assert len(zlib.compress(WHOLE.tobytes(), 1)) > 0.998 * len(WHOLE)


@pytest.mark.parametrize(("pattern", "least", "most"), [("uniform_fp16", 1.05, 1.4), ("uniform_fp32", 1.05, 1.3)])
def test_numbers_as_torch_rand_shrink_a_little_and_stay_unique(pattern: Pattern, least: float, most: float) -> None:
    data = np.empty(2 * PIECE_BYTES, np.uint8)
    BulkContent(7, pattern).fill(data, 1, 0)
    assert least < len(data) / len(zlib.compress(data.tobytes(), 6)) < most
    assert not np.array_equal(data[:PIECE_BYTES], data[PIECE_BYTES:])


def test_a_changed_byte_is_found_and_another_process_makes_the_same() -> None:
    copy: BulkContent = pickle.loads(pickle.dumps(CONTENT))
    data = WHOLE.copy()
    assert copy.first_difference(data, 3, 0) is None
    data[PIECE_BYTES + 17] ^= 1
    assert copy.first_difference(data, 3, 0) == PIECE_BYTES + 17
