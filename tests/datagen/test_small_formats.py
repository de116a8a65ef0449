"""csv, synthetic, jpeg and png: what differs from other formats, beside what Python's csv and Pillow make and read."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datagen.content import Content
from datagen.errors import DatasetError, UserError
from datagen.formats import jpeg, png
from datagen.formats._picture import PictureFormat, Shape
from datagen.formats.csv import Format
from datagen.formats.format_base import reading
from datagen.formats.synthetic import Format as Synthetic
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.verify import verify
from tests.datagen.conftest import MakeSpec, fetch_of, fetched, make
from tests.datagen.sources import FILE, MemorySource, expected, job, written
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


# Pictures of a stated size, beside what Pillow makes and reads


CODECS: list[PictureFormat] = [jpeg.Format(), png.Format()]


def name_of(codec: PictureFormat) -> str:
    return type(codec).__module__.rpartition(".")[2]


each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: name_of(codec))
SHAPES = st.builds(Shape, st.integers(1, 70), st.integers(1, 70), st.sampled_from([1, 3]))


def opened(data: bytes, codec: PictureFormat) -> Any:
    return type(codec)().open(MemorySource(data), 1).sample(0)


def pillows(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


@given(codec=st.sampled_from(CODECS), shape=SHAPES, more=st.one_of(st.integers(0, 300), st.integers(0, 200_000)))
@settings(max_examples=150, deadline=None)
def test_any_size_from_the_smallest_on_is_met_and_is_a_picture(codec: PictureFormat, shape: Shape, more: int) -> None:
    size = codec.min_bytes(shape) + more
    data = codec.encode(Content(1), FILE, shape, size)
    assert len(data) == size
    codec.check(memoryview(data))
    pixels = pillows(data)
    assert pixels.shape == (shape[:2] if shape.channels == 1 else shape)
    assert bytes(opened(data, codec).decode()) == pixels.tobytes()


@each_codec
@pytest.mark.parametrize("shape", [(61, 47), (61, 47, 3)], ids=["L", "RGB"])
@pytest.mark.parametrize("options", [{"bits": 8}, {"progressive": True, "comment": b"\xff\xd9"}], ids=["dlio", "other"])
def test_pictures_of_others(codec: PictureFormat, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Made as DLIO's generator does, of random pixels."""
    file = io.BytesIO()
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, shape, np.uint8))
    image.save(file, format=name_of(codec).upper(), **options)
    sample = opened(file.getvalue(), codec)
    assert bytes(sample.data) == file.getvalue()
    assert bytes(sample.decode()) == pillows(file.getvalue()).tobytes()
    assert sample.first_difference(Content(1), FILE) is not None


@each_codec
def test_damage_that_only_a_decoder_sees(codec: PictureFormat) -> None:
    data = bytearray(codec.encode(Content(1), FILE, Shape(30, 40, 1), 1300))
    data[-100:-20] = b"\xff" * 80
    with pytest.raises(DatasetError, match="damaged"), reading("file.dat"):
        opened(bytes(data), codec).decode()
