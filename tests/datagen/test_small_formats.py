"""csv, synthetic and a user's incomplete format: what differs from other formats."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError, UserError
from datagen.formats.csv import Format
from datagen.formats.format_base import reading
from datagen.formats.synthetic import Format as Synthetic
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.verify import verify
from tests.datagen.conftest import MakeSpec, fetch_of, fetched, make
from tests.datagen.sources import MemorySource, expected, job, written
from tests.datasets import storage_named


@given(first=st.integers(1, 40), second=st.integers(1, 40), samples=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_lines_are_the_records(first: int, second: int, samples: int) -> None:
    made = job("csv", (first, second), num_samples_per_file=samples)
    data = written(Format(), made)
    assert (data.endswith(b"\n"), b"\r" in data) == (True, False)
    lines = [list(map(int, line)) for line in csv.reader(io.StringIO(data.decode(), newline=""))]
    assert lines == np.frombuffer(expected(made), np.uint8).reshape(samples, -1).tolist()
    opened = Format().open(MemorySource(data), samples)
    for index, line in enumerate(data.splitlines()):
        sample = opened.sample(index)
        assert (bytes(sample.data), list(sample.plain_payload)) == (line, lines[index])


@given(st.binary(min_size=1, max_size=9))
@settings(max_examples=300, deadline=None)
def test_what_is_read_is_what_is_written(line: bytes) -> None:
    try:
        with reading("file.dat"):
            numbers = Format().open(MemorySource(line + b"\n"), 1).sample(0).plain_payload
    except DatasetError:
        return
    assert ",".join(map(str, numbers)).encode() == line


def test_synthetic_files_hold_their_running_index_and_samples_are_made_in_memory(small: MakeSpec) -> None:
    spec = make(small(format="synthetic", num_files_train=12, num_samples_per_file=3))
    paths = [layout.path(number) for layout in layouts(spec) for number in range(layout.num_files)]
    assert [Path(path).read_text() for path in paths] == [str(number) for number in range(15)]
    found = inspect(spec)
    assert found.manifest is not None
    assert found.manifest.bytes == found.total_bytes == 10 + 2 * 5
    assert verify(spec) == []
    for storage in ("posix", "direct"):
        for resize in (0, 3000):
            fetch = fetch_of(spec, storage=storage_named(storage), resize_bytes=resize, verify=True)
            result, _ = fetched(fetch, [0, 35])
            assert [size for _, size in result.places] == [resize or 141 * 141] * 2
            assert (result.app_bytes, result.read_calls, result.read_ns) == (0, 0, 0)


def test_a_format_that_reads_no_files_is_not_taken_for_a_damaged_file() -> None:
    with pytest.raises(UserError, match="synthetic can't read files: its `Format` has neither"), reading("file.dat"):
        Synthetic().open(MemorySource(b"7"), 1)
