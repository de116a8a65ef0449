"""Streams of records: many small read calls for each sample, which must cost little else."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError
from datagen.formats import webdataset
from datagen.formats._buffered import python_calls
from datagen.formats.format_base import MovedError
from datagen.formats.webdataset import BLOCK, TAIL, Format, TarRecords
from datagen.inspection import inspect
from datagen.layout import shifted
from datagen.records import RecordReader
from datagen.storage import posix
from datagen.storage.storage_base import Reader
from tests.datagen.conftest import MakeSpec, make
from tests.datagen.record_sources import MemorySource, record_format


class Storage(posix.Storage):
    """Keeps the ranges that are read together."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[tuple[int, int]]] = []

    def read_stretches(self, reader: Reader, ranges: Sequence[tuple[int, int]], out: memoryview) -> int:
        self.together.append(list(ranges))
        return super().read_stretches(reader, ranges, out)


@pytest.mark.parametrize("name", ["webdataset", "tfrecord"])
def test_the_calls_of_a_batch_are_made_together(small: MakeSpec, name: str) -> None:
    found = inspect(make(small(format=name, num_samples_per_file=20, record_length_bytes=100_000)))
    storage = Storage()
    reader = RecordReader(storage, record_format(name), found.train, False, called=True)
    out = AlignedBuffer().view(20 * 110_000)
    reader.read(range(10), out)
    first = storage.together[-1]
    assert len(first) >= reader.read_calls - 2, "but the file's first block, and the call that ends outside"
    assert all(offset + size == following for (offset, size), (following, _) in itertools.pairwise(first))
    reader.read(range(10, 20), out)
    size = storage.size_bytes(found.train.path(0))
    assert reader.app_bytes == size - (len(TAIL) if name == "webdataset" else 0)
    reader.close()


@pytest.mark.parametrize("block_bytes", [512, 4096, 65536, 4 << 20])
def test_the_sizes_that_repeat_are_those_of_a_buffered_file(block_bytes: int) -> None:
    reads = itertools.chain([tarfile.BLOCKSIZE], itertools.repeat(tarfile.RECORDSIZE))
    wanted = itertools.islice(python_calls(reads, block_bytes), 9999)
    assert list(itertools.islice(Format.stream_calls.sizes(block_bytes), 9999)) == list(wanted)


def tar(sizes: Sequence[int] = (700,) * 6) -> bytearray:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size, member.mtime = size, number
            archive.addfile(member, io.BytesIO(bytes(size)))
    return bytearray(out.getvalue()[: len(sizes) * 3 * BLOCK] + TAIL)


def test_headers_of_one_kind_are_not_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data, parse = tar(), Mock(wraps=webdataset.parse)
    monkeypatch.setattr(webdataset, "parse", parse)
    records = TarRecords(MemorySource(bytes(data)), 6)
    parse.reset_mock()
    places = np.asarray(records.samples(0, 6, memoryview(data)[: -len(TAIL)], False))
    assert places.tolist() == [[BLOCK + number * 3 * BLOCK, 700] for number in range(6)]
    assert parse.call_count == 1


def outcome(data: bytearray, first: int, count: int, path: str) -> list[list[int]] | str:
    """Return what a run of samples gives: places in the file, or why there are none."""
    begin, whole = first * 3 * BLOCK, count * 3 * BLOCK
    records = TarRecords(MemorySource(bytes(data), path), 6)
    try:
        places = np.asarray(records.samples(first, count, memoryview(data)[begin : begin + whole], False))
    except MovedError:
        return "moved"
    except DatasetError as error:
        return str(error).replace(path, "")
    moved: list[list[int]] = shifted(places, begin).tolist()
    return moved


@pytest.mark.parametrize("field", [0, 99, 124, 130, 134, 148, 153, 154, 155, 156, 257, 345, 511])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("value", [0, ord("3"), ord("9"), 255])
def test_a_changed_header_is_found_among_others(field: int, summed: bool, value: int) -> None:
    """As if each sample were read alone, whether the checksum is that of the change or not."""
    data, at = tar(), 4 * 3 * BLOCK
    data[at + field] = value
    if summed and not 148 <= field < 156:
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + BLOCK])
    path = f"s3://bucket/{field}-{summed}-{value}"
    alone = [outcome(data, number, 1, f"{path}-{number}") for number in range(6)]
    wanted = next((one for one in alone if isinstance(one, str)), [one[0] for one in alone])
    assert outcome(data, 0, 6, path) == wanted
