"""The bytes of samples and of checkpoints are unique, the same wherever a read begins, and say whose they are."""

from __future__ import annotations

import pickle
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from datagen.content import (
    PIECE_BYTES,
    STAMP_WORDS,
    BulkContent,
    Content,
    Stamp,
    StampedContent,
    explain,
    find_stamps,
    identify,
    write_stamps,
)
from datagen.spec import BLOCK_BYTES


def payload(content: StampedContent, file: int, size: int, offset: int = 0) -> NDArray[np.uint8]:
    out = np.zeros(size, np.uint8)
    content.fill(out, file, offset)
    return out


SAMPLES = Content(3), 9, payload(Content(3), 9, 700 * BLOCK_BYTES + 123)
CHECKPOINT = BulkContent(7), 3, payload(BulkContent(7), 3, 2 * PIECE_BYTES + 5000)
WHOLES = st.sampled_from([SAMPLES, CHECKPOINT])


@given(whole=WHOLES, data=st.data(), shift=st.integers(0, 9))
@settings(max_examples=250, deadline=None)
def test_any_piece_equals_the_slice_of_the_whole(
    whole: tuple[StampedContent, int, NDArray[np.uint8]], data: st.DataObject, shift: int
) -> None:
    content, file, known = whole
    offset = data.draw(st.integers(0, len(known)))
    size = data.draw(st.integers(0, min(len(known) - offset, 3 * BLOCK_BYTES)) | st.just(len(known) - offset))
    room = bytearray(size + shift)
    content.fill(memoryview(room)[shift:], file, offset)  # also at odd addresses
    assert bytes(room[shift:]) == known[offset : offset + size].tobytes()


@given(whole=WHOLES, data=st.data(), start=st.integers(0, 5000))
@settings(max_examples=80, deadline=None)
def test_the_first_difference_is_found_by_any_process(
    whole: tuple[StampedContent, int, NDArray[np.uint8]], data: st.DataObject, start: int
) -> None:
    content, file, known = whole
    at, changed = data.draw(st.integers(0, len(known) - 1)), known.copy()
    changed[at] ^= 0x40
    copy: StampedContent = pickle.loads(pickle.dumps(content))
    assert copy.first_difference(changed[start:], file, start) == (at - start if at >= start else None)


@pytest.mark.parametrize(
    ("data", "crc"),
    [(SAMPLES[2], 0xC0E3B946), (payload(Content(1, 0.5), 0, 1 << 20), 0x2CF6D716), (CHECKPOINT[2], 0xCC9FB2CA)],
)
def test_the_bytes_never_change(data: NDArray[np.uint8], crc: int) -> None:
    """Changing them takes a new CONTENT_VERSION or BULK_VERSION: what was made before would no longer verify."""
    assert zlib.crc32(data.tobytes()) == crc


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**52 - 1))
def test_a_stamp_is_told_from_its_bytes_whatever_it_says(seed_hash: int, file: int, block: int) -> None:
    blocks = np.zeros((1, STAMP_WORDS), np.uint64)
    write_stamps(blocks, seed_hash, file, block)
    made = blocks.tobytes()
    assert identify(made) == Stamp(seed_hash, file, block * BLOCK_BYTES)
    assert identify(made[:4] + bytes([made[4] ^ 1]) + made[5:]) is None


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("level", [1, 6])
def test_a_compressor_removes_the_stated_share(share: float, level: int) -> None:
    plain = payload(Content(1, share), 5, 1 << 20).tobytes()
    assert 1 - len(zlib.compress(plain, level)) / len(plain) == pytest.approx(share, abs=0.03)


def test_no_two_blocks_of_checkpoints_are_equal_and_no_compressor_finds_anything() -> None:
    content, _, whole = CHECKPOINT
    other = payload(content, 4, len(whole))
    blocks = {bytes(data[at : at + 512]) for data in (whole, other) for at in range(0, 2 * PIECE_BYTES, 512)}
    assert len(blocks) == 2 * 2 * PIECE_BYTES // 512
    assert len(zlib.compress(whole.tobytes(), 1)) > 0.998 * len(whole)


def test_stamps_are_found_and_explained_wherever_they_are() -> None:
    data = b"x" * 77 + payload(Content(0), 2, 2 * BLOCK_BYTES).tobytes()
    assert [(at, stamp.offset) for at, stamp in find_stamps(data)] == [(77, 0), (77 + BLOCK_BYTES, BLOCK_BYTES)]
    assert explain(data[77:], 100, Content(0), 1) == "there is a block of file number 2, payload offset 0"
    assert "of another dataset" in explain(data[77:], 100, Content(1), 2)
    assert "its position are wrong" in explain(data[77:], 100, Content(0), 2)
    assert "no dlemu stamp" in explain(bytes(5000), 100, Content(0), 2)
