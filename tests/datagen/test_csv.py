from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError
from datagen.formats.csv import Format
from tests.datagen.sources import FILE, MemorySource, expected, job, written


@given(first=st.integers(1, 40), second=st.integers(1, 40), samples=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_lines_are_the_records(first: int, second: int, samples: int) -> None:
    made = job("csv", (first, second), num_samples_per_file=samples)
    data = written(Format(), made)
    lines = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert [[int(field) for field in line] for line in lines] == np.frombuffer(expected(made), np.uint8).reshape(
        samples, -1
    ).tolist()
    assert data.endswith(b"\n")
    assert b"\r" not in data
    opened = Format().open(MemorySource(data), samples)
    for index in range(samples):
        sample = opened.sample(index)
        assert bytes(sample.data) == data.splitlines()[index]
        start = index * made.record_bytes
        assert bytes(sample.plain_payload) == expected(made)[start : start + made.record_bytes]
        assert sample.first_difference(made.content, FILE) is None


def decoded(line: bytes) -> list[int]:
    sample = Format().open(MemorySource(line + b"\n"), 1).sample(0)
    assert sample.decode is not None
    return list(sample.decode())


@given(st.binary(min_size=1, max_size=9))
@settings(max_examples=300, deadline=None)
def test_what_is_read_is_what_is_written(line: bytes) -> None:
    try:
        numbers = decoded(line)
    except DatasetError:
        return
    assert ",".join(map(str, numbers)).encode() == line


@pytest.mark.parametrize(
    ("data", "samples", "words"),
    [
        (b"", 1, "0 whole lines where"),
        (b"1,2", 1, "0 whole lines and an incomplete one"),
        (b"1,2\n3", 1, "1 whole lines and an incomplete one"),
        (b"1,2\n3\n", 3, "2 whole lines where 3 samples were wanted"),
        (b"1,2\n3\n", 1, "2 whole lines where 1 samples were wanted"),
    ],
)
def test_lines_that_are_missing(data: bytes, samples: int, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        Format().open(MemorySource(data), samples)
