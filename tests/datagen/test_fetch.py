from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError, UserError
from datagen.fetch import Fetched, Fetcher, FetchSpec, crop_start
from datagen.inspection import Dataset, inspect
from datagen.layout import layouts
from datagen.spec import DatasetSpec
from tests.datagen.conftest import MakeSpec, make
from tests.datasets import storage_named

Spec = Callable[..., FetchSpec]
Made = Callable[..., tuple[DatasetSpec, Spec]]


@pytest.fixture
def dataset(small: MakeSpec) -> Made:
    def made(**changes: object) -> tuple[DatasetSpec, Spec]:
        spec = make(small(**changes))
        found = inspect(spec)
        return spec, lambda **options: FetchSpec(found, found.train, **options)

    return made


def truth(spec: DatasetSpec, sample: int) -> bytes:
    """Return a sample's bytes as np.load gives them."""
    file, index = divmod(sample, spec.num_samples_per_file)
    with np.load(layouts(spec)[0].path(file)) as archive:
        return bytes(archive["x"][..., index].tobytes())


def fetched(fetch: FetchSpec, samples: list[int]) -> tuple[Fetched, list[bytes], memoryview]:
    out = AlignedBuffer().view(fetch.slot_bytes(len(samples)))
    out[:] = b"\xaa" * len(out)
    result = Fetcher(fetch).fetch(samples, out)
    return result, [bytes(out[start : start + size]) for start, size in result.places], out


def test_the_library_is_counted_by_the_kernel(dataset: Made) -> None:
    spec, fetch = dataset()
    size = os.path.getsize(layouts(spec)[0].path(2))
    fetcher, out = Fetcher(fetch(engine="library", resize_bytes=4096)), memoryview(bytearray(4096))
    fetcher.fetch([1], out)  # the first call imports what it needs
    result = fetcher.fetch([2], out)
    # np.load reads the end of the archive and the headers more than once.
    assert size <= result.app_bytes < size + 20_000
    assert 1 < result.read_calls < 40


def test_null_storage_reads_nothing_and_copies_the_crop(small: MakeSpec) -> None:
    spec = small()
    nominal = 141 * 141
    layout, _ = layouts(spec)
    found = Dataset(
        spec=spec, train=layout, valid=None, manifest=None, max_file_bytes=0, max_sample_bytes=0, total_bytes=0
    )
    whole = FetchSpec(found, layout, storage=storage_named("null"), verify=True)
    result, data, _ = fetched(whole, [0, 5])
    assert [len(one) for one in data] == [nominal, nominal]
    assert (result.app_bytes, result.read_calls, result.read_ns) == (0, 0, 0)
    result, data, _ = fetched(replace(whole, resize_bytes=3000), [0, 5])
    assert data == [bytes(3000)] * 2  # the slot was filled with other bytes before
    assert result.app_bytes == 0


def flip(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_verify_finds_a_changed_byte(dataset: Made) -> None:
    spec, fetch = dataset()
    path = layouts(spec)[0].path(3)
    flip(path, 183 + 5000)
    fetched(fetch(resize_bytes=4096), [3])  # not asked, not found
    with pytest.raises(DatasetError, match=rf"{path} \(file number 3\) .* payload offset 5000 .*file number 3"):
        fetched(fetch(resize_bytes=4096, verify=True), [2, 3])


def test_a_file_that_went_away(dataset: Made) -> None:
    spec, fetch = dataset()
    os.unlink(layouts(spec)[0].path(3))
    for engine in ("fast", "library"):
        with pytest.raises(DatasetError, match="No such file"):
            fetched(fetch(engine=engine), [3])


def test_verify_needs_our_names(dataset: Made) -> None:
    _, fetch = dataset()
    layout = replace(fetch().layout, names=("a.npz",) * 6)
    with pytest.raises(UserError, match=r"reader\.verify needs a dataset made by dlemu"):
        Fetcher(replace(fetch(verify=True), layout=layout))


@given(seed=st.integers(0, 2**48), sample=st.integers(0, 2**40), size=st.integers(0, 2**33), crop=st.integers(1, 2**32))
def test_crops_lie_in_their_sample(seed: int, sample: int, size: int, crop: int) -> None:
    start = crop_start(seed, sample, size, crop)
    assert start % 4096 == 0
    assert start == 0 or start + crop <= size
