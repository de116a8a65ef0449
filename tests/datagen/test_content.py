from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.content import STAMP_WORDS, Content, Stamp, explain, find_stamps, identify, write_stamps
from datagen.spec import BLOCK_BYTES

GOLDEN_CRC = 0xC0E3B946
GOLDEN_HALF_CRC = 0x2CF6D716
BIG_BYTES = 700 * BLOCK_BYTES + 123


def payload(content: Content, file: int, size: int, offset: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    out = np.zeros(size, np.uint8)
    content.fill(out, file, offset)
    return out


BIG = payload(Content(3), 9, BIG_BYTES)


@given(offset=st.integers(0, BIG_BYTES), data=st.data(), shift=st.integers(0, 9))
@settings(max_examples=200)
def test_any_piece_equals_the_slice_of_the_whole(offset: int, data: st.DataObject, shift: int) -> None:
    size = data.draw(st.integers(0, min(BIG_BYTES - offset, 3 * BLOCK_BYTES)) | st.just(BIG_BYTES - offset))
    room = bytearray(size + shift)
    Content(3).fill(memoryview(room)[shift:], 9, offset)  # also at odd addresses
    assert bytes(room[shift:]) == BIG[offset : offset + size].tobytes()


def test_the_bytes_never_change() -> None:
    # Changing these bytes takes a new CONTENT_VERSION: datasets made before would no longer verify.
    assert zlib.crc32(BIG.tobytes()) == GOLDEN_CRC
    assert zlib.crc32(payload(Content(1, 0.5), 0, 1 << 20).tobytes()) == GOLDEN_HALF_CRC


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


@given(at=st.integers(0, BIG_BYTES - 1), start=st.integers(0, 5000))
@settings(max_examples=60)
def test_the_first_difference_is_found(at: int, start: int) -> None:
    data = BIG.copy()
    data[at] ^= 0x40
    wanted = at - start if at >= start else None
    assert Content(3).first_difference(data[start:], 9, start) == wanted


def test_stamps_are_found_wherever_they_lie() -> None:
    data = b"x" * 77 + payload(Content(0), 2, 2 * BLOCK_BYTES).tobytes()
    assert [(at, stamp.offset) for at, stamp in find_stamps(data)] == [(77, 0), (77 + BLOCK_BYTES, BLOCK_BYTES)]


def test_explanations() -> None:
    other = payload(Content(0), 2, BLOCK_BYTES).tobytes()
    assert explain(other, 100, Content(0), 1) == (True, "there is a block of file number 2, payload offset 0")
    assert explain(other, 100, Content(1), 2)[0]
    assert explain(other, 100, Content(0), 2)[0] is False
    assert "no dlemu stamp" in explain(bytes(5000), 100, Content(0), 2)[1]
