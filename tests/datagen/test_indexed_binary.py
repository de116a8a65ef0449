from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError
from datagen.formats.format_base import RecordInputs, Source, reading
from datagen.formats.indexed_binary import IndexedFile
from datagen.inspection import inspect
from datagen.layout import layouts
from tests.datagen.conftest import MakeSpec, fetch_of, fetched, make
from tests.datagen.sources import MemorySource, payload
from tests.datasets import storage_named

FORMATS = ["indexed_binary", "mmap_indexed_binary"]


def opened(data: bytes, offsets: list[int] | None, sizes: list[int] | None, samples: int) -> IndexedFile:
    def side(number: int) -> Source | None:
        entries = (offsets, sizes)[number]
        return None if entries is None else MemorySource(np.array(entries, "<u8").tobytes(), f"index {number}")

    return IndexedFile(RecordInputs(MemorySource(data, "data"), samples, side))


def test_equal_records_keep_nothing_of_the_index() -> None:
    """277 million records a file must cost no memory: only three entries of each index are looked at."""

    class Counted(MemorySource):
        bytes_read = 0

        def read(self, offset: int, size_bytes: int) -> memoryview:
            Counted.bytes_read += size_bytes
            number = offset // 8
            value = number * 2048 if self.path == "index 0" else 2048
            return memoryview(value.to_bytes(8, "little"))

    count = 277_203_535

    def side(number: int) -> Source:
        source = Counted(b"", f"index {number}")
        source.size_bytes = 8 * count
        return source

    data = MemorySource(b"", "data")
    data.size_bytes = 2048 * count
    file = IndexedFile(RecordInputs(data, count, side))
    assert Counted.bytes_read == 2 * 3 * 8
    assert file.span(count - 2, 2) == (2048 * (count - 2), 4096)
    assert file.largest_bytes() == 2048


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=20), gap=st.integers(0, 3))
@settings(max_examples=200)
def test_records_of_other_lengths_lie_where_the_index_says(sizes: list[int], gap: int) -> None:
    starts = np.cumsum([0] + [size + gap for size in sizes])[:-1].tolist()
    data = bytes(starts[-1] + sizes[-1] + 1)
    file = opened(data, starts, sizes, len(sizes))
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        assert file.span(number, 1) == (start, size)
        assert file.samples(number, 1, memoryview(data)[start : start + size], False) == [(0, size)]
    assert file.largest_bytes() == max(sizes)


@pytest.mark.parametrize(
    ("offsets", "sizes", "words"),
    [
        (None, None, "10 bytes are not 3 records .* no index"),
        ([0, 3], [3, 3, 4], "index 0: at offset 16: the index is truncated: 3 records need 24 bytes"),
        ([0, 3, 6], [3, 3, 5], "the end of record 2 at 11, beyond the end of the file"),
        ([0, 3, 1 << 63], [3, 3, 4], "beyond the end of the file"),
    ],
)
def test_a_bad_index_is_told(offsets: list[int] | None, sizes: list[int] | None, words: str) -> None:
    with pytest.raises(DatasetError, match=words), reading("file.dat"):
        opened(bytes(10), offsets, sizes, 3).span(2, 1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("storage", ["posix", "direct"])
def test_uneven_files_of_others(small: MakeSpec, name: str, storage: str) -> None:
    spec = small(format=name, num_files_train=1, num_files_eval=0, num_samples_per_file=4)
    path = Path(layouts(spec)[0].path(0))
    path.parent.mkdir(parents=True)
    data, sizes = payload(0, 20_000), [5000, 1, 7000, 2000]
    starts = [0, 5000, 6000, 13_500]
    path.write_bytes(data)
    for suffix, entries in ((".off.idx", starts), (".sz.idx", sizes)):
        Path(f"{path}{suffix}").write_bytes(np.array(entries, "<u8").tobytes())
    fetch = fetch_of(spec, storage=storage_named(storage), engine="fast")
    assert fetch.found.max_record_bytes == 7000
    wanted = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    assert fetched(fetch, range(4))[1] == wanted
    if storage == "posix":
        assert fetched(replace(fetch, engine="library"), range(4))[1] == wanted


@pytest.mark.parametrize("name", FORMATS)
def test_a_lost_index_is_made_again(small: MakeSpec, name: str) -> None:
    spec = make(small(format=name, num_samples_per_file=5))
    path = Path(layouts(spec)[0].path(1) + ".sz.idx")
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(DatasetError, match=r"\.sz\.idx is missing: 1 wrong"):
        inspect(spec)
    make(spec)
    assert path.read_bytes() == before
