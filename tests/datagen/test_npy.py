from __future__ import annotations

import io
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError
from datagen.formats.npy import Format
from tests.datagen.sources import MemorySource, expected, job, written

TYPES = ["uint8", "int16", "float32", "complex128"]


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=8).map(tuple),
    samples=st.integers(1, 12),
    element=st.sampled_from(TYPES),
)
@settings(max_examples=60, deadline=None)
def test_bytes_equal_numpys(shape: tuple[int, ...], samples: int, element: str) -> None:
    made = job("npy", shape, num_samples_per_file=samples, record_dims=shape, record_element_type=element)
    array = np.frombuffer(expected(made), element).reshape(*shape, samples)
    numpys = io.BytesIO()
    np.save(numpys, array)
    mine = written(Format(), made)
    assert mine == numpys.getvalue()
    sizes = Format().file_bytes(made.spec, np.array([shape]))
    assert sizes is not None
    assert sizes.tolist() == [len(mine)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_others_are_read(order: Literal["C", "F"]) -> None:
    array = np.asarray(np.arange(24, dtype=np.int32).reshape(2, 3, 4), order=order)
    file = io.BytesIO()
    np.save(file, array)
    opened = Format().open(MemorySource(file.getvalue()), 4)
    for index in range(4):
        assert bytes(opened.sample(index).data) == array[..., index].tobytes(order="A")


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x05\x00abcde", b"PK\x03\x04" + bytes(40)])
def test_foreign_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"file\.dat: .*`dlemu datagen verify`"):
        Format().open(MemorySource(data), 1)
