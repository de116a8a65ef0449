"""How tf.data takes files in turn, worked out by hand."""

from typing import Any

import pytest

from datagen.spec import DatasetSpec
from dlemu.config.interleave import Interleave, interleaved, samples_read_ahead
from dlemu.config.schema import Reader

MIB = 1 << 20


def dataset(record_bytes: int, samples_per_file: int) -> DatasetSpec:
    return DatasetSpec(format="tfrecord", record_dims=(record_bytes,), num_samples_per_file=samples_per_file)


def turns(record_bytes: int, samples_per_file: int, **reader: Any) -> Interleave:
    return interleaved(Reader(**({"read_threads": 4} | reader)), dataset(record_bytes, samples_per_file))


@pytest.mark.parametrize(("record_bytes", "block_length"), [(100, 20971), (4096, 512), (2 * MIB, 1), (20 * MIB, 1)])
def test_a_turn_is_of_two_mebibytes_or_one_record(record_bytes: int, block_length: int) -> None:
    assert turns(record_bytes, 100_000).block_length == block_length


def test_there_is_always_somebody_to_read() -> None:
    assert turns(MIB, 10, read_threads=0).files == 1


@pytest.mark.parametrize(("samples_per_file", "files_ahead"), [(1, 8), (512, 8), (513, 0), (10_000, 0)])
def test_files_are_begun_ahead_where_one_turn_ends_them(samples_per_file: int, files_ahead: int) -> None:
    assert turns(4096, samples_per_file).files_ahead == files_ahead


@pytest.mark.parametrize(
    ("read_threads", "record_bytes", "samples_per_file", "samples"),
    [
        (1, 2 * MIB, 50, 1),  # the reader's buffer alone
        (2, 2 * MIB, 50, 2 * (2 + 1 + 1)),
        (4, 2 * MIB, 50, 4 * (2 + 1 + 1)),
        (4, 2 * MIB, 1, 12),  # whole files, of which twice as many are begun
        (8, MIB // 8, 1000, 8 * (2 * 16 + 1 + 2)),
    ],
)
def test_read_ahead(read_threads: int, record_bytes: int, samples_per_file: int, samples: int) -> None:
    reader = Reader(read_threads=read_threads)
    assert samples_read_ahead(reader, dataset(record_bytes, samples_per_file)) == samples


def test_a_larger_transfer_is_read_ahead_as_well() -> None:
    reader = Reader(read_threads=2, transfer_size=4 * MIB)
    assert samples_read_ahead(reader, dataset(MIB, 50)) == 2 * (2 * 2 + 1 + 4)
