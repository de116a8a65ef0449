"""A tf.train.Example of two features, `image` (bytes) and `size` (int64), in protobuf's wire format by hand.

Wire format: protobuf.dev/programming-guides/encoding. Messages: tensorflow/core/example/{example,feature}.proto, where
Example.features = 1; Features.feature = 1, a map whose entries have key = 1 and value = 2; Feature.bytes_list = 1,
.int64_list = 3; BytesList.value = 1; Int64List.value = 1, packed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IMAGE, SIZE = b"image", b"size"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KEY_OF_FIELD_1, _KEY_OF_FIELD_2, _KEY_OF_FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def around_image(image_bytes: int) -> tuple[bytes, bytes]:
    """Return what stands before and behind the image in an Example with an image of so many bytes."""
    values = _field(_KEY_OF_FIELD_1, _varint(image_bytes))
    size = _field(_KEY_OF_FIELD_1, SIZE) + _field(_KEY_OF_FIELD_2, _field(_KEY_OF_FIELD_3, values))
    behind = _field(_KEY_OF_FIELD_1, size)
    # From the inside out: each message's length counts the image, which is put in by the caller.
    before = _KEY_OF_FIELD_1 + _varint(image_bytes)  # BytesList.value
    for key in (_KEY_OF_FIELD_1, _KEY_OF_FIELD_2):  # Feature.bytes_list, the entry's value
        before = key + _varint(len(before) + image_bytes) + before
    before = _field(_KEY_OF_FIELD_1, IMAGE) + before
    before = _KEY_OF_FIELD_1 + _varint(len(before) + image_bytes) + before  # Features.feature
    return _KEY_OF_FIELD_1 + _varint(len(before) + image_bytes + len(behind)) + before, behind


def example_bytes(image_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of Examples with images of so many bytes."""
    unique, places = np.unique(image_bytes, return_inverse=True)
    sizes = np.array([sum(map(len, around_image(size))) for size in unique.tolist()], np.int64) + unique
    return sizes[places]


def find_image(example: memoryview) -> tuple[int, int]:
    """Return start and bytes of the feature `image` in an Example, or of all of it where it has no such feature.

    Raises:
        ValueError: it is no Example.
    """
    start, stop = _only(example, 0, len(example))
    while start < stop:
        entry_start, entry_stop, start = _message(example, start, stop)
        key, value = _entry(example, entry_start, entry_stop)
        if bytes(example[slice(*key)]) == IMAGE:
            values = _only(example, *value)
            first = _only(example, *values)
            return first[0], first[1] - first[0]
    return 0, len(example)


def _field(key: bytes, value: bytes) -> bytes:
    return key + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    """Return a number and the offset behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that never ends")


def _message(data: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """Return start and stop of the first field with a length from `at` on, and the offset behind it."""
    while at < stop:
        key, at = _read_varint(data, at, stop)
        kind = key & 7
        if kind == _BYTES:
            size, at = _read_varint(data, at, stop)
            if at + size > stop:
                raise ValueError("a field longer than its message")
            return at, at + size, at + size
        if kind == _VARINT:
            _, at = _read_varint(data, at, stop)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"a field of unknown kind {kind}")
    raise ValueError("an empty message")


def _only(data: memoryview, start: int, stop: int) -> tuple[int, int]:
    """Return start and stop of a message's first field."""
    return _message(data, start, stop)[:2]


def _entry(data: memoryview, start: int, stop: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where key and value of a map's entry lie."""
    key_start, key_stop, at = _message(data, start, stop)
    value_start, value_stop, _ = _message(data, at, stop)
    return (key_start, key_stop), (value_start, value_stop)
