"""jpeg and png: real pictures in files of the stated size, beside what Pillow makes and reads."""

from __future__ import annotations

import io
import sys
import zlib
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
from datagen.formats.format_base import reading
from datagen.layout import layouts, nominal_sample_bytes
from datagen.spec import DatasetSpec
from tests.datagen.conftest import make
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
    data = codec.encode(Content(1), FILE, shape, size).tobytes()
    assert len(data) == size
    codec.check(memoryview(data))
    pixels = pillows(data)
    assert pixels.shape == (shape[:2] if shape.channels == 1 else shape)
    assert bytes(opened(data, codec).decode()) == pixels.tobytes()


@each_codec
def test_mlperfs_files(codec: PictureFormat, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_files_train": 4, "record_length_bytes": 322957}
    spec = make(DatasetSpec(data_folder=str(tmp_path), format=name_of(codec), **settings))
    paths = [Path(layouts(spec)[0].path(i)) for i in range(4)]
    assert [path.stat().st_size for path in paths] == [322957] * 4
    assert nominal_sample_bytes(spec) == 322957
    assert paths[0].name == f"img_0_of_4.{name_of(codec)}"
    pictures = [pillows(path.read_bytes()) for path in paths]
    assert {picture.shape for picture in pictures} == {(568, 568)}
    assert len({picture.tobytes() for picture in pictures}) == 4
    assert all(picture.std() > 50 for picture in pictures), "noise, as in DLIO's pictures"
    together = b"".join(path.read_bytes() for path in paths)
    assert len(zlib.compress(together)) > 0.97 * len(together)


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
@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(50)], ids=repr)
def test_foreign_bytes_are_an_error(codec: PictureFormat, data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"file\.dat: "), reading("file.dat"):
        opened(data, codec)


@each_codec
def test_damage_that_only_a_decoder_sees(codec: PictureFormat) -> None:
    data = bytearray(codec.encode(Content(1), FILE, Shape(30, 40, 1), 1300).tobytes())
    data[-100:-20] = b"\xff" * 80
    with pytest.raises(DatasetError, match="damaged"), reading("file.dat"):
        opened(bytes(data), codec).decode()


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    spec = make(DatasetSpec(data_folder=str(tmp_path), format="jpeg", num_files_train=1))  # needs no library
    data = Path(layouts(spec)[0].path(0)).read_bytes()
    with pytest.raises(UserError, match=r"pip install 'dlemu\[image\]'"):
        opened(data, jpeg.Format()).decode()
