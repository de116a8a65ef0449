from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.fetch import Fetched, Fetcher, FetchSpec, crop_start
from datagen.formats.npz import Format
from datagen.generate import files_of
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.spec import DatasetSpec
from datagen.storage import memory
from tests.datagen.conftest import MakeSpec, make
from tests.datasets import storage_named

Spec = Callable[..., FetchSpec]
Dataset = Callable[..., tuple[DatasetSpec, Spec]]


@pytest.fixture
def dataset(small: MakeSpec) -> Dataset:
    def made(**changes: object) -> tuple[DatasetSpec, Spec]:
        spec = make(small(**changes))
        found = inspect(spec)
        return spec, lambda **options: FetchSpec.for_dataset(found, found.train, **options)

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


@pytest.mark.parametrize("storage", ["posix", "direct"])
@pytest.mark.parametrize("compression", ["none", "zip"])
@pytest.mark.parametrize("samples_per_file", [1, 3])
def test_whole_samples(dataset: Dataset, storage: str, compression: str, samples_per_file: int) -> None:
    spec, fetch = dataset(compression=compression, num_samples_per_file=samples_per_file, compressibility=0.5)
    samples = [5, 0, 1, 1, 3]
    _, data, _ = fetched(fetch(storage=storage_named(storage), verify=True), samples)
    assert data == [truth(spec, sample) for sample in samples]


@pytest.mark.parametrize("storage", ["posix", "direct"])
@pytest.mark.parametrize("samples_per_file", [1, 3])
def test_crops_are_of_the_sample(dataset: Dataset, storage: str, samples_per_file: int) -> None:
    spec, fetch = dataset(num_samples_per_file=samples_per_file)
    samples = [4, 2, 0]
    result, data, _ = fetched(fetch(storage=storage_named(storage), resize_bytes=5000, seed=8), samples)
    assert result.places.tolist() == [[0, 5000], [5000, 5000], [10000, 5000]]
    for sample, crop in zip(samples, data, strict=True):
        whole = truth(spec, sample)
        start = crop_start(8, sample, len(whole), 5000)
        assert crop == whole[start : start + 5000]


def test_short_samples_are_padded_with_zeros(dataset: Dataset) -> None:
    spec, fetch = dataset()
    _, data, _ = fetched(fetch(resize_bytes=100_000), [0, 1])
    for sample, crop in zip((0, 1), data, strict=True):
        whole = truth(spec, sample)
        assert crop == whole + bytes(100_000 - len(whole))


@pytest.mark.parametrize("samples_per_file", [1, 2])
@pytest.mark.parametrize("resize_bytes", [0, 5000])
def test_library_ships_the_same_bytes(dataset: Dataset, samples_per_file: int, resize_bytes: int) -> None:
    _, fetch = dataset(num_samples_per_file=samples_per_file)
    fast = fetched(fetch(resize_bytes=resize_bytes), [3, 0])
    library = fetched(fetch(resize_bytes=resize_bytes, engine="library", verify=True), [3, 0])
    assert fast[1] == library[1]


def test_every_byte_of_every_file_is_counted(dataset: Dataset) -> None:
    spec, fetch = dataset()
    sizes = [os.path.getsize(layouts(spec)[0].path(i)) for i in range(6)]
    for storage in ("posix", "direct"):
        result, _, _ = fetched(fetch(engine="fast", storage=storage_named(storage), resize_bytes=4096), [0, 4, 4, 5])
        assert result.app_bytes == sizes[0] + sizes[4] + sizes[5]
        assert result.read_calls == 3
        assert result.read_ns > 0
        assert result.decode_ns > 0


def test_the_library_is_counted_by_the_kernel(dataset: Dataset) -> None:
    spec, fetch = dataset()
    size = os.path.getsize(layouts(spec)[0].path(2))
    fetcher, out = Fetcher(fetch(engine="library", resize_bytes=4096)), memoryview(bytearray(4096))
    fetcher.fetch([1], out)  # the first call imports what it needs
    result = fetcher.fetch([2], out)
    # np.load reads the end of the archive and the headers more than once.
    assert size <= result.app_bytes < size + 20_000
    assert 1 < result.read_calls < 40


def test_whole_samples_are_read_in_place(dataset: Dataset) -> None:
    _, fetch = dataset()
    spec = fetch()
    result, _, out = fetched(spec, [0, 1, 2])
    # The header of the archive still lies before each sample: nothing was moved.
    for start, _ in result.places:
        assert bytes(out[start - 183 : start - 179]) == b"PK\x03\x04"
        assert (start - 183) % 4096 == 0
    assert spec.buffer_bytes == 0


def test_null_storage_reads_nothing_and_copies_the_crop(small: MakeSpec) -> None:
    spec = small()
    nominal = 141 * 141
    layout, _ = layouts(spec)
    whole = FetchSpec(
        layout=layout, format="npz", storage=storage_named("null"), nominal_sample_bytes=nominal, verify=True
    )
    result, data, _ = fetched(whole, [0, 5])
    assert [len(one) for one in data] == [nominal, nominal]
    assert (result.app_bytes, result.read_calls, result.read_ns) == (0, 0, 0)
    result, data, _ = fetched(replace(whole, resize_bytes=3000), [0, 5])
    assert data == [bytes(3000)] * 2  # the slot was filled with other bytes before
    assert result.app_bytes == 0


def test_memory_storage(small: MakeSpec) -> None:
    spec = small(num_samples_per_file=2)
    files, storage = files_of(spec), memory.Storage()
    for i in range(6):
        writer = storage.create(files.path(i))
        Format().write(files.job(i), writer, AlignedBuffer())
        writer.commit()
    fetch = FetchSpec(
        layout=files.train,
        format="npz",
        engine="fast",
        storage=storage_named("memory"),
        verify=True,
        content=files.content,
        max_file_bytes=100_000,
    )
    out = AlignedBuffer().view(fetch.slot_bytes(12))
    result = Fetcher(fetch, storage).fetch(range(12), out)
    assert result.read_calls == 6
    assert len(result.places) == 12


def test_a_spec_crosses_processes(dataset: Dataset) -> None:
    _, fetch = dataset()
    spec = fetch(resize_bytes=4096)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len(pickle.dumps(spec)) < 2000


def flip(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_verify_finds_a_changed_byte(dataset: Dataset) -> None:
    spec, fetch = dataset()
    path = layouts(spec)[0].path(3)
    flip(path, 183 + 5000)
    fetched(fetch(resize_bytes=4096), [3])  # not asked, not found
    with pytest.raises(DatasetError, match=rf"{path} \(file number 3\) .* payload offset 5000 .*file number 3"):
        fetched(fetch(resize_bytes=4096, verify=True), [2, 3])


def test_verify_finds_another_files_bytes(dataset: Dataset) -> None:
    spec, fetch = dataset(record_length_bytes_stdev=0)
    train = layouts(spec)[0]
    os.replace(train.path(1), train.path(0))
    with pytest.raises(DatasetError, match="there is a block of file number 1"):
        fetched(fetch(verify=True), [0])


def test_a_truncated_file_is_named(dataset: Dataset) -> None:
    spec, fetch = dataset()
    path = layouts(spec)[0].path(3)
    os.truncate(path, 1000)
    for engine in ("fast", "library"):
        with pytest.raises(DatasetError, match=path):
            fetched(fetch(engine=engine), [3])


def test_a_file_that_went_away(dataset: Dataset) -> None:
    spec, fetch = dataset()
    os.unlink(layouts(spec)[0].path(3))
    for engine in ("fast", "library"):
        with pytest.raises(DatasetError, match="No such file"):
            fetched(fetch(engine=engine), [3])


def test_no_file_stays_open(dataset: Dataset) -> None:
    spec, fetch = dataset()
    os.truncate(layouts(spec)[0].path(3), 1000)
    before = len(os.listdir("/proc/self/fd"))
    fetched(fetch(), [0, 1])
    with pytest.raises(DatasetError):
        fetched(fetch(), [0, 3])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sample_larger_than_its_place(dataset: Dataset) -> None:
    _, fetch = dataset()
    with pytest.raises(SpaceError, match="sample 0 has"):
        fetched(replace(fetch(), max_file_bytes=100, max_sample_bytes=0, nominal_sample_bytes=0), [0])


def test_verify_needs_our_names(dataset: Dataset) -> None:
    _, fetch = dataset()
    layout = replace(fetch().layout, names=("a.npz",) * 6)
    with pytest.raises(UserError, match=r"reader\.verify needs a dataset made by dlemu"):
        Fetcher(replace(fetch(verify=True), layout=layout))


@given(seed=st.integers(0, 2**48), sample=st.integers(0, 2**40), size=st.integers(0, 2**33), crop=st.integers(1, 2**32))
def test_crops_lie_in_their_sample(seed: int, sample: int, size: int, crop: int) -> None:
    start = crop_start(seed, sample, size, crop)
    assert start % 4096 == 0
    assert start == 0 or start + crop <= size


def test_crops_come_from_everywhere() -> None:
    starts = {crop_start(1, sample, 100 * 4096, 4096) // 4096 for sample in range(2000)}
    assert starts == set(range(100))


def test_crops_of_another_seed_lie_elsewhere() -> None:
    one, other = ([crop_start(seed, sample, 10**9, 4096) for sample in range(50)] for seed in (1, 2))
    assert one != other
    assert Content(1) != Content(2)


@pytest.mark.parametrize(("file_format", "plain"), [("npz", True), ("npy", True), ("hdf5", True), ("csv", False)])
def test_samples_of_one_file_take_no_more_memory_than_they_have(
    dataset: Dataset, file_format: str, plain: bool
) -> None:
    _, fetch = dataset(format=file_format, num_samples_per_file=50, record_length_bytes_stdev=0)
    spec = fetch(verify=True)
    assert spec.place_bytes == (20480 if plain else -(-spec.max_file_bytes // 4096) * 4096)
    out = AlignedBuffer().view(spec.slot_bytes(50))
    assert len(Fetcher(spec).fetch(range(50), out).places) == 50
