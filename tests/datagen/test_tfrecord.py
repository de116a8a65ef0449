from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError
from datagen.formats.format_base import CHUNK_BYTES, RecordInputs, Source, reading
from datagen.formats.tfrecord import Format, TfrecordFile, masked_crc
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.spec import DatasetSpec
from tests.datagen.conftest import MakeSpec, make
from tests.datagen.sources import MemorySource, payload, record_file, records_of

SHAPES = st.tuples(st.integers(1, 60), st.integers(1, 60))


def spec_of(samples: int) -> DatasetSpec:
    return DatasetSpec(format="tfrecord", num_samples_per_file=samples)


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<L", masked_crc(length)) + data + struct.pack("<L", masked_crc(data))


def opened(data: bytes, samples: int, index: bytes | None = None) -> TfrecordFile:
    def side(_number: int) -> Source | None:
        return None if index is None else MemorySource(index)

    file = RecordInputs(MemorySource(data), samples, side)
    return Format().open_records(file._replace(offsets=Format().locate(file)))


@given(shape=SHAPES, samples=st.integers(1, 40))
@example((1, 127), 3)
@example((1, 128), 3)
@example((1, 16383), 3)  # lengths in Protocol Buffers take one more byte from 128, and from 16384 on
@example((1, 16384), 3)
@example((1, CHUNK_BYTES // 2), 3)
@example((1, 3 * CHUNK_BYTES + 5), 3)
@settings(max_examples=60, deadline=None)
def test_sizes_and_samples(shape: tuple[int, int], samples: int) -> None:
    spec, shapes = spec_of(samples), np.array([shape])
    data, index = record_file(spec, shape), record_file(spec, shape, side=0)
    assert len(data) == Format().file_bytes(spec, shapes)[0]
    assert len(index) == Format.sides[0].file_bytes(spec, shapes)[0]
    image_bytes = shape[0] * shape[1]
    samples_read = records_of(Format(), data, samples)
    for number, line in enumerate(index.decode().splitlines()):
        offset, size = map(int, line.split())
        assert size == Format().record_bytes(spec, shapes)[0]
        record = data[offset : offset + size]
        assert record == framed(record[12:-4])
        assert samples_read[number] == payload(number * image_bytes, (number + 1) * image_bytes)
    assert number == samples - 1


UNEQUAL = [framed(b"\xff" * size) for size in (30, 1, 50, 0, 99)]


@pytest.mark.parametrize("indexed", [True, False, "foreign"])
def test_records_of_other_lengths_are_found(indexed: object) -> None:
    data = b"".join(UNEQUAL)
    starts = np.cumsum([0] + [len(record) for record in UNEQUAL])
    lines = "".join(f"{start} {len(record)}\n" for start, record in zip(starts, UNEQUAL, strict=False))
    index = {True: lines.encode(), False: None, "foreign": b"0 7\n7 9\n"}[indexed]
    assert [len(sample) for sample in records_of(Format(), data, 5)] == [30, 1, 50, 0, 99]
    file = opened(data, 5, index)
    assert file.largest_bytes() == 99 + 16
    assert file.span(2, 2) == (starts[2], len(UNEQUAL[2] + UNEQUAL[3]))


def test_lengths_that_only_look_equal() -> None:
    """Records whose mean is the first one's length, in a file of the size that the settings give: the second tells."""
    data = b"".join(framed(b"\xff" * size) for size in (20, 10, 30))
    file = TfrecordFile(RecordInputs(MemorySource(data), 3, lambda _: None))
    with pytest.raises(DatasetError, match="a record states 10 bytes of data where there are 20"), reading("file.dat"):
        file.samples(0, 3, memoryview(data), False)


@pytest.mark.parametrize("sizes", [(30, 1, 50, 0, 99), (20, 10, 30), (20, 20, 20)])
def test_the_usual_way_without_tensorflow_finds_records_of_any_lengths(sizes: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(framed(bytes([255 - size]) * size) for size in sizes))
    for number, size in enumerate(sizes):
        assert bytes(Format().load(str(path), number, len(sizes)).data) == bytes([255 - size]) * size
    with pytest.raises(DatasetError, match=r"no record 5: it holds 5|no record 3: it holds 3"), reading("file.dat"):
        Format().load(str(path), len(sizes), len(sizes))


def test_an_example_of_others_in_another_order() -> None:
    size = b"\x0a\x04size\x12\x05\x1a\x03\x0a\x01\x05"
    image = b"\x0a\x05image\x12\x09\x0a\x07\x0a\x05hello"
    features = b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in (size, image))
    data = framed(b"\x0a" + bytes([len(features)]) + features)
    assert records_of(Format(), data, 1) == [b"hello"]


def index_path(spec: DatasetSpec, file: int) -> str:
    return Format.sides[0].path(layouts(spec)[0], file)


def test_the_index_is_where_dlio_has_it_and_sets_of_others_need_none(small: MakeSpec) -> None:
    spec = make(small(format="tfrecord", num_samples_per_file=4, num_subfolders_train=2))
    for split, files in (("train", 6), ("valid", 3)):
        names = sorted(os.listdir(f"{spec.data_folder}/index/{split}"))
        assert names == [f"img_{i}_of_{files}.tfrecord.idx" for i in range(files)]
    most = inspect(spec).max_record_bytes
    Path(spec.data_folder, "dlemu.json").unlink()
    Path(index_path(spec, 1)).unlink()
    assert inspect(spec).max_record_bytes == most > spec.record_length_bytes


def test_fewer_records_than_stated() -> None:
    with pytest.raises(DatasetError, match=r"no record 3: it holds 3.*num_samples_per_file"), reading("file.dat"):
        records_of(Format(), record_file(spec_of(3), (10, 13)), 4)
