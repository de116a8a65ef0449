"""npy and npz: as NumPy writes them, and as others write them by NumPy."""

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
from datagen.formats import npy, npz
from datagen.formats.format_base import FileJob, FormatBase, reading
from datagen.spec import Compression, DatasetSpec
from datagen.storage import null
from tests.datagen import sources
from tests.datagen.sources import MemorySource, expected, job


def written(shape: tuple[int, int], samples: int = 1, compression: Compression = "none") -> bytes:
    return sources.written(npz.Format(), job("npz", shape, num_samples_per_file=samples, compression=compression))


def saved(save: Callable[..., None], *arrays: object, **named: object) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def stated_bytes(made: FormatBase, shape: tuple[int, ...], **settings: Any) -> int:
    sizes = made.file_bytes(DatasetSpec(**settings), np.array([shape]))
    assert sizes is not None
    return int(sizes[0])


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=8).map(tuple),
    samples=st.integers(1, 12),
    element=st.sampled_from(["uint8", "int16", "float32", "complex128"]),
)
@settings(max_examples=60, deadline=None)
def test_the_bytes_of_npy_equal_numpys(shape: tuple[int, ...], samples: int, element: str) -> None:
    options: dict[str, Any] = {"num_samples_per_file": samples, "record_dims": shape, "record_element_type": element}
    made = job("npy", shape, **options)
    mine = sources.written(npy.Format(), made)
    assert mine == saved(np.save, np.frombuffer(expected(made), element).reshape(*shape, samples))
    assert stated_bytes(npy.Format(), shape, **options) == len(mine)


@given(first=st.integers(1, 300), second=st.integers(1, 300), samples=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_the_sizes_of_npz_equal_numpys(first: int, second: int, samples: int) -> None:
    shape = (first, second)
    numpys = saved(np.savez, x=np.zeros((*shape, samples), np.uint8), y=[0] * samples)
    stated = stated_bytes(npz.Format(), shape, num_samples_per_file=samples)
    assert len(written(shape, samples)) == len(numpys) == stated


@pytest.mark.slow
@pytest.mark.parametrize("first", [(1 << 31) - 128 - 1, 1 << 31])
def test_the_sizes_of_npz_equal_numpys_at_the_limit_of_32_bits(first: int) -> None:
    counter = null.Storage().create("x")
    npz.Format().write(FileJob(DatasetSpec(format="npz"), Content(0), 0, (first, 1)), counter, AlignedBuffer())
    sink = Sink()
    np.savez(sink, x=np.broadcast_to(np.uint8(0), (first, 1, 1)), y=[0])
    assert counter.position == sink.size_bytes == stated_bytes(npz.Format(), (first, 1))


class Sink(io.RawIOBase):
    position = size_bytes = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        assert whence == 0
        self.position = offset
        return offset

    def tell(self) -> int:
        return self.position

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.position += size
        self.size_bytes = max(self.size_bytes, self.position)
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
def test_arrays_of_others_are_read(array: NDArray[np.generic]) -> None:
    files: list[tuple[FormatBase, bytes]] = [
        (npy.Format(), saved(np.save, array)),
        (npz.Format(), saved(np.savez, labels=[1, 2], x=array)),
        (npz.Format(), saved(np.savez_compressed, x=array)),
    ]
    for made, data in files:
        assert bytes(made.open(MemorySource(data), 1).sample(0).data) == array.tobytes(order="A")
        opened = made.open(MemorySource(data), 4)
        for index in range(4 if array.shape[2:] == (4,) else 0):
            found = opened.sample(index)
            assert bytes(found.data) == array[..., index].tobytes(order="A")
            assert len(found.payload) == (0 if index else array.nbytes), "the file is compared once"


def test_one_sample_is_the_largest_array_of_somebody_elses_file() -> None:
    volume = np.arange(300.0)
    found = npz.Format().open(MemorySource(saved(np.savez, mask=np.zeros(9), volume=volume)), 1).sample(0)
    assert bytes(found.payload) == volume.tobytes()


def shortened() -> bytes:
    """Memory that held another sample must never pass for the rest of this one."""
    data = bytearray(written((20, 30), compression="zip"))
    data[data.index(b"PK\x01\x02") + 20] -= 10  # the size of the packed bytes
    return bytes(data)


FOREIGN = [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x05\x00abcde", b"PK\x03\x04" + bytes(40)]


@pytest.mark.parametrize(
    ("made", "data", "samples", "words"),
    [
        (npz, written((20, 30)).replace(b"'|u1'", b"'|a1'", 1), 1, r"type \|a1, which NumPy does not write"),
        (npz, shortened(), 1, "deflated data unpacks to"),
        (npz, written((20, 30)).replace(b"(20, 30, 1)", b"(20, 31, 1)"), 1, r"600 bytes, which do not make \(20, 31"),
        (npz, saved(np.savez, z=[1, 2]), 2, r"no member x\.npy"),
        (npz, saved(np.savez), 1, r"no member x\.npy"),
        (npz, saved(np.savez, x=np.array([{}], dtype=object)), 1, "Python objects"),
        (npz, written((10, 10), 2), 3, "holds 2 samples, not 3"),
        (npz, written((10, 10))[:-2] + b"\x05\0hello", 1, "ends in a comment"),
        (npy, saved(np.save, np.zeros(3)).replace(b"NUMPY\x01", b"NUMPY\x02"), 1, r"file format 1\.0"),
        (npz, written((20, 30))[:-1], 1, r"file\.dat: .* offset \d+.*`dlemu datagen verify`"),
        *((npy, data, 1, r"file\.dat: .*`dlemu datagen verify`") for data in FOREIGN),
    ],
)
def test_what_can_not_be_read_is_named(made: Any, data: bytes, samples: int, words: str) -> None:
    with pytest.raises(DatasetError, match=words), reading("file.dat"):
        made.Format().open(MemorySource(data), samples).sample(samples - 1)
