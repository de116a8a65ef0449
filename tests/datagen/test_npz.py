from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import DatasetError
from datagen.formats.format_base import FileJob
from datagen.formats.npz import Format
from datagen.spec import Compression, DatasetSpec
from datagen.storage import null
from tests.datagen import sources
from tests.datagen.sources import MemorySource, job


def source(data: bytes) -> MemorySource:
    return MemorySource(data, "file.npz")


def written(shape: tuple[int, int], samples: int = 1, compression: Compression = "none") -> bytes:
    return sources.written(Format(), job("npz", shape, num_samples_per_file=samples, compression=compression))


def saved(save: Callable[..., None], **arrays: object) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def stated_bytes(shape: tuple[int, int], samples: int) -> int:
    sizes = Format().file_bytes(DatasetSpec(format="npz", num_samples_per_file=samples), np.array([shape]))
    assert sizes is not None
    return int(sizes[0])


def expected(size: int) -> bytes:
    out = np.empty(size, np.uint8)
    Content(1).fill(out, 7, 0)
    return out.tobytes()


@given(first=st.integers(1, 300), second=st.integers(1, 300), samples=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_sizes_equal_numpys(first: int, second: int, samples: int) -> None:
    shape = (first, second)
    numpys = saved(np.savez, x=np.zeros((*shape, samples), np.uint8), y=[0] * samples)
    assert len(written(shape, samples)) == len(numpys) == stated_bytes(shape, samples)


@pytest.mark.slow
@pytest.mark.parametrize("first", [(1 << 31) - 128 - 1, 1 << 31])
def test_sizes_equal_numpys_at_the_limit_of_32_bits(first: int, tmp_path: object) -> None:
    counter = null.Storage().create("x")
    spec = DatasetSpec(format="npz")
    Format().write(FileJob(spec, Content(0), 0, (first, 1)), counter, AlignedBuffer())
    sink = Sink()
    np.savez(sink, x=np.broadcast_to(np.uint8(0), (first, 1, 1)), y=[0])
    assert counter.position == sink.size_bytes == stated_bytes((first, 1), 1)


class Sink(io.RawIOBase):
    """A file that keeps nothing but its size."""

    def __init__(self) -> None:
        self._position = 0
        self.size_bytes = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        assert whence == 0
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._position += size
        self.size_bytes = max(self.size_bytes, self._position)
        return size


ARRAYS: list[NDArray[np.generic]] = [
    np.arange(24, dtype=np.int16).reshape(2, 3, 4),
    np.asfortranarray(np.arange(24, dtype=np.float64).reshape(2, 3, 4)),
    np.arange(5, dtype=np.uint8),
    np.array(3.5),
    np.zeros((2, 2), dtype=[("a", "<i4"), ("b", "u1")]),
    np.zeros((0, 3), np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_others_are_read(array: NDArray[np.generic], save: Callable[..., None]) -> None:
    data = saved(save, labels=[1, 2], x=array)
    assert bytes(Format().open(source(data), 1).sample(0).data) == array.tobytes(order="A")


@pytest.mark.parametrize("array", ARRAYS[:2], ids=["C", "F"])
def test_one_of_several_samples_of_others(array: NDArray[np.generic]) -> None:
    opened = Format().open(source(saved(np.savez, x=array)), 4)
    for index in range(4):
        assert bytes(opened.sample(index).data) == array[..., index].tobytes(order="A")


WHOLE = {
    (compression, samples): written((20, 30), samples, compression)
    for compression in ("none", "zip")
    for samples in (1, 2)
}


def shortened() -> bytes:
    """Memory that held another sample must never pass for the rest of this one."""
    data = bytearray(written((20, 30), compression="zip"))
    data[data.index(b"PK\x01\x02") + 20] -= 10  # the size of the packed bytes
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "samples", "words"),
    [
        (WHOLE[("none", 1)].replace(b"'|u1'", b"'|a1'", 1), 1, r"type \|a1, which NumPy does not write"),
        (shortened(), 1, "deflated data unpacks to"),
        (written((20, 30)).replace(b"(20, 30, 1)", b"(20, 31, 1)"), 1, r"600 bytes, which do not make \(20, 31, 1\)"),
        (saved(np.savez, z=[1, 2]), 2, r"no member x\.npy"),
        (saved(np.savez), 1, r"no member x\.npy"),
        (saved(np.savez, x=np.array([{}], dtype=object)), 1, "Python objects"),
        (written((10, 10), 2), 3, "holds 2 samples, not 3"),
        (WHOLE[("none", 1)][:-1], 1, r"file\.npz: .* offset \d+.*`dlemu datagen verify`"),
    ],
)
def test_what_can_not_be_read_is_named(data: bytes, samples: int, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        Format().open(source(data), samples).sample(samples - 1)


def test_one_sample_is_the_largest_array_of_somebody_elses_file() -> None:
    volume = np.arange(300.0)
    found = Format().open(source(saved(np.savez, mask=np.zeros(9), volume=volume)), 1).sample(0)
    assert bytes(found.payload) == volume.tobytes()
