from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import DatasetError, SpaceError
from datagen.fetch import Fetched, Fetcher, FetchSpec, crop_start
from datagen.inspection import inspect
from datagen.layout import Runs, layouts, runs_of
from datagen.records import MAX_OPEN_FILES, RecordReader, max_open_files
from datagen.spec import DatasetSpec
from tests.datagen.conftest import MakeSpec, make
from tests.datagen.record_sources import memory_dataset, record_format
from tests.datasets import storage_named

Dataset = Callable[..., tuple[DatasetSpec, Callable[..., FetchSpec]]]
FORMATS = ["tfrecord", "indexed_binary", "mmap_indexed_binary", "webdataset"]


@pytest.fixture(params=FORMATS)
def dataset(small: MakeSpec, request: pytest.FixtureRequest) -> Dataset:
    def made(**changes: object) -> tuple[DatasetSpec, Callable[..., FetchSpec]]:
        spec = make(small(**({"format": request.param, "num_samples_per_file": 5} | changes)))
        found = inspect(spec)
        return spec, lambda **options: FetchSpec.for_dataset(found, found.train, **options)

    return made


def truth(spec: DatasetSpec, sample: int, size: int) -> bytes:
    file, index = divmod(sample, spec.num_samples_per_file)
    out = bytearray((index + 1) * size)
    Content(spec.seed).fill(memoryview(out), file, 0)
    return bytes(out[index * size :])


def fetched(fetch: FetchSpec, samples: list[int] | Runs) -> tuple[Fetched, list[bytes]]:
    out = AlignedBuffer().view(fetch.slot_bytes(len(samples)))
    out[:] = b"\xaa" * len(out)
    result = Fetcher(fetch).fetch(samples, out)
    return result, [bytes(out[start : start + size]) for start, size in result.places]


@pytest.mark.parametrize("storage", ["posix", "direct"])
@pytest.mark.parametrize("verify", [False, True])
def test_whole_records(dataset: Dataset, storage: str, verify: bool) -> None:
    spec, fetch = dataset()
    samples = [29, 0, 1, 2, 2, 14, 15, 16, 3]
    _, data = fetched(fetch(storage=storage_named(storage), verify=verify), samples)
    for sample, seen in zip(samples, data, strict=True):
        assert len(seen) > 1000
        assert seen == truth(spec, sample, len(seen))


@pytest.mark.parametrize("storage", ["posix", "direct"])
@pytest.mark.parametrize("resize", [300, 100_000])
def test_crops_are_of_the_record(dataset: Dataset, storage: str, resize: int) -> None:
    _, fetch = dataset()
    samples = [*range(30), 7, 3]
    result, data = fetched(fetch(storage=storage_named(storage), resize_bytes=resize, seed=8, verify=True), samples)
    _, whole = fetched(fetch(), samples)
    assert result.places.tolist() == [[number * resize, resize] for number in range(32)]
    for sample, crop, full in zip(samples, data, whole, strict=True):
        start = crop_start(8, sample, len(full), resize)
        assert crop == full[start : start + resize].ljust(resize, b"\0")


@pytest.mark.parametrize("resize", [0, 300])
def test_library_ships_the_same_bytes(dataset: Dataset, resize: int) -> None:
    _, fetch = dataset()
    library = fetched(fetch(resize_bytes=resize, engine="library", verify=True), [3, 0, 11])
    assert fetched(fetch(resize_bytes=resize), [3, 0, 11])[1] == library[1]


def test_only_records_are_read_and_neighbours_at_once(dataset: Dataset) -> None:
    spec, fetch = dataset(record_length_bytes_stdev=0)
    record_bytes = fetch().max_record_bytes
    result, _ = fetched(fetch(engine="fast"), [1, 2, 3, 4, 5, 6, 0])  # files of 5: two reads of neighbours, one alone
    assert (result.read_calls, result.app_bytes) == (3, 7 * record_bytes)
    assert result.read_ns > 0
    assert fetch().slot_bytes(7) < 2 * spec.num_samples_per_file * 7 * record_bytes


def test_null_storage_reads_nothing(dataset: Dataset) -> None:
    _, fetch = dataset()
    result, data = fetched(replace(fetch(), storage=storage_named("null")), [0, 5])
    assert (result.app_bytes, result.read_calls, len(data)) == (0, 0, 2)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_files_stay_open_between_batches_and_close_in_the_end(dataset: Dataset) -> None:
    _, fetch = dataset()
    before = open_files()
    fetcher, out = Fetcher(fetch(engine="fast")), memoryview(bytearray(fetch().slot_bytes(6)))
    for _ in range(3):
        fetcher.fetch(range(0, 30, 5), out)
        assert open_files() == before + 6
    fetcher.close()
    assert open_files() == before
    fetcher.fetch([0], out)
    del fetcher
    assert open_files() == before


@pytest.mark.parametrize("most", [1, 2, 5])
def test_more_files_than_may_be_open(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    _, fetch = dataset()
    monkeypatch.setattr("datagen.records.MAX_OPEN_FILES", most)
    before = open_files()
    fetcher = Fetcher(fetch(engine="fast", verify=True))
    out = memoryview(bytearray(fetch().slot_bytes(30)))
    for _ in range(2):
        fetcher.fetch([5 * (i % 6) + i // 6 for i in range(30)], out)
        assert open_files() == before + most
    fetcher.close()


def test_open_files_are_a_share_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, wanted in ((1024, 128), (4, 1), (1 << 20, MAX_OPEN_FILES), (resource.RLIM_INFINITY, MAX_OPEN_FILES)):
        limits = (soft, soft)
        monkeypatch.setattr(resource, "getrlimit", lambda _what, limits=limits: limits)
        assert max_open_files() == wanted


def test_a_changed_byte_is_found_when_asked(dataset: Dataset) -> None:
    spec, fetch = dataset()
    path = layouts(spec)[0].path(1)
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 2)
        byte = file.read(1)[0]
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
    fetched(fetch(), [5, 6, 7, 8, 9])
    with pytest.raises(DatasetError, match=path):
        fetched(fetch(verify=True), [5, 6, 7, 8, 9])


def test_a_truncated_file_is_named(dataset: Dataset) -> None:
    spec, fetch = dataset()
    path = layouts(spec)[0].path(1)
    size = os.path.getsize(path)
    os.truncate(path, size - 10)
    with pytest.raises(DatasetError, match=path):
        fetched(fetch(), [9])


def test_a_file_that_went_away(dataset: Dataset) -> None:
    spec, fetch = dataset()
    os.unlink(layouts(spec)[0].path(3))
    for engine in ("fast", "library"):
        with pytest.raises(DatasetError, match="No such file"):
            fetched(fetch(engine=engine), [16])


def test_no_file_stays_open_after_a_failure(dataset: Dataset) -> None:
    spec, fetch = dataset()
    os.truncate(layouts(spec)[0].path(1), 100)
    before = open_files()
    with pytest.raises(DatasetError):
        fetched(fetch(), [0, 9])
    assert open_files() == before


def test_a_slot_too_small_is_told(dataset: Dataset) -> None:
    _, fetch = dataset()
    with pytest.raises(SpaceError, match="larger than"):
        Fetcher(fetch()).fetch([0, 7], memoryview(bytearray(5000)))


@pytest.mark.parametrize("name", FORMATS)
def test_memory_storage(name: str) -> None:
    files, storage = memory_dataset(format=name)
    fetch = FetchSpec(
        layout=files.train,
        format=name,
        engine="fast",
        storage=storage_named("memory"),
        transfer_bytes=1 << 20,
        verify=True,
        content=files.content,
        max_record_bytes=70_000,
    )
    out = AlignedBuffer().view(fetch.slot_bytes(15))
    assert Fetcher(fetch, storage).fetch(range(15), out).read_calls == 3


def test_no_such_sample() -> None:
    files, storage = memory_dataset(format="tfrecord")
    reader = RecordReader(storage, record_format("tfrecord"), files.train, False)
    for samples in ([-1], [15], [3, 99]):
        with pytest.raises(IndexError):
            reader.read(samples, memoryview(bytearray(10)))
    assert reader.read([], memoryview(b"")).tolist() == []


@given(samples=st.lists(st.integers(0, 30)), per_file=st.integers(1, 12))
@settings(max_examples=200)
def test_runs_are_the_batch_in_order(samples: list[int], per_file: int) -> None:
    found = runs_of(samples, per_file)
    assert [first + i for first, count in found for i in range(count)] == samples
    for first, count in found:
        assert first // per_file == (first + count - 1) // per_file
    for (first, count), (following, _) in pairwise(found):
        assert first + count != following or following % per_file == 0


@given(
    pairs=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 70)), min_size=1, max_size=9),
    per_file=st.integers(1, 40),
)
def test_runs_given_are_cut_where_files_end(pairs: list[tuple[int, int]], per_file: int) -> None:
    given_runs = Runs(pairs)
    samples = [first + place for first, count in pairs for place in range(count)]
    assert (given_runs.tolist(), len(given_runs)) == (samples, len(samples))
    cut = runs_of(given_runs, per_file)
    assert [first + place for first, count in cut for place in range(count)] == samples
    assert all(count > 0 and first // per_file == (first + count - 1) // per_file for first, count in cut)
    assert len(cut) <= len(pairs) + sum(count // per_file + 1 for _, count in pairs)


def test_a_batch_given_as_runs_is_read_as_one_given_by_numbers(dataset: Dataset) -> None:
    _, fetch = dataset()
    runs = Runs([(12, 9), (3, 1), (0, 3)])
    for resize in (0, 300):
        options = {"resize_bytes": resize, "verify": True}
        by_number, by_run = fetched(fetch(**options), runs.tolist()), fetched(fetch(**options), runs)
        assert by_number[1] == by_run[1]
        assert by_number[0].app_bytes == by_run[0].app_bytes
    out = memoryview(bytearray(fetch().slot_bytes(4)))
    for outside in (Runs([(28, 3)]), Runs([(-1, 2)]), [28, 30], [-1, 0]):
        with pytest.raises(IndexError):
            Fetcher(fetch()).fetch(outside, out)
