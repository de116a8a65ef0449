"""jpeg and png: real pictures in files of the stated size, beside what Pillow makes and reads."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datagen.content import Content
from datagen.errors import DatasetError
from datagen.formats import jpeg, png
from datagen.formats._picture import PictureFormat, Shape
from datagen.formats.format_base import reading
from tests.datagen.sources import FILE, MemorySource

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
