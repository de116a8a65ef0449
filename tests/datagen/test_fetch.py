"""Batches: what is read of files and of records in them, by which calls, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError, SpaceError, UserError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import Dataset
from datagen.layout import Runs, cut_runs, layouts
from datagen.spec import DatasetSpec
from datagen.storage import posix
from tests.datagen.conftest import MakeSpec, fetch_of, fetched, make
from tests.datasets import storage_named

Made = Callable[..., DatasetSpec]
FORMATS = ["tfrecord", "indexed_binary", "mmap_indexed_binary", "webdataset"]


@pytest.fixture(params=FORMATS)
def made(small: MakeSpec, request: pytest.FixtureRequest) -> Made:
    return lambda **changes: make(small(**({"format": request.param, "num_samples_per_file": 5} | changes)))


def test_only_records_are_read_and_neighbours_at_once(made: Made) -> None:
    fetch = fetch_of(made(record_length_bytes_stdev=0), engine="fast")
    record_bytes = fetch.found.max_record_bytes
    result, _ = fetched(fetch, [1, 2, 3, 4, 5, 6, 0])  # files of 5: two reads of neighbours, one alone
    assert (result.read_calls, result.app_bytes) == (3, 7 * record_bytes)
    assert result.read_ns > 0
    assert fetch.slot_bytes(7) < 2 * 5 * 7 * record_bytes


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("most", [1, 2, 5, 512])
def test_files_stay_open_up_to_a_limit_and_close(made: Made, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    fetch = fetch_of(made(), engine="fast", verify=True)
    monkeypatch.setattr("datagen.records.MAX_OPEN_FILES", most)
    before = open_files()
    fetcher, out = Fetcher(fetch), memoryview(bytearray(fetch.slot_bytes(30)))
    for _ in range(2):
        fetcher.fetch([5 * (i % 6) + i // 6 for i in range(30)], out)
        assert open_files() == before + min(most, 6)
    fetcher.close()
    assert open_files() == before
    fetcher.fetch([0], out)
    del fetcher
    assert open_files() == before


def test_opening_files_takes_time_of_reads(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, storage = fetch_of(made(), engine="fast"), posix.Storage()
    opened = Mock(side_effect=storage.open)
    for name in ("open", "open_mapped"):
        monkeypatch.setattr(storage, name, opened)
    monkeypatch.setattr("time.monotonic_ns", lambda: opened.call_count)
    result, _ = fetched(fetch, [0, 7], storage)
    assert result.read_ns == opened.call_count > result.decode_ns == 0


def test_a_record_that_fills_hdf5s_sieve_is_read_again_in_the_next_epoch(small: MakeSpec) -> None:
    changes = {"num_samples_per_file": 2, "record_length_bytes": 1 << 16, "record_length_bytes_stdev": 0}
    fetch = fetch_of(make(small(format="hdf5", **changes)), verify=True)
    fetcher, out = Fetcher(fetch), memoryview(bytearray(fetch.slot_bytes(1)))
    *_, again = [fetcher.fetch([sample], out) for sample in (0, 2, 0)]
    assert (again.read_calls, again.app_bytes) == (1, 1 << 16)


@given(samples=st.lists(st.integers(0, 30)), per_file=st.integers(1, 12))
@settings(max_examples=200)
def test_runs_are_the_batch_in_order(samples: list[int], per_file: int) -> None:
    found = cut_runs(samples, per_file)
    assert [first + i for first, count in found for i in range(count)] == samples
    for first, count in found:
        assert first // per_file == (first + count - 1) // per_file
    for (first, count), (following, _) in pairwise(found):
        assert first + count != following or following % per_file == 0


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 70)), min_size=1, max_size=9), st.integers(1, 40))
def test_runs_given_are_cut_where_files_end(pairs: list[tuple[int, int]], per_file: int) -> None:
    given_runs = Runs(pairs)
    samples = [first + place for first, count in pairs for place in range(count)]
    assert (given_runs.tolist(), len(given_runs)) == (samples, len(samples))
    cut = cut_runs(given_runs, per_file)
    assert Runs(cut).tolist() == samples
    assert all(count > 0 and first // per_file == (first + count - 1) // per_file for first, count in cut)
    assert len(cut) <= len(pairs) + sum(count // per_file + 1 for _, count in pairs)


def test_a_batch_given_as_runs_is_read_as_one_given_by_numbers(made: Made) -> None:
    fetch = fetch_of(made(), verify=True)
    runs = Runs([(12, 9), (3, 1), (0, 3)])
    for resize in (0, 300):
        cropped = replace(fetch, resize_bytes=resize)
        by_number, by_run = fetched(cropped, runs.tolist()), fetched(cropped, runs)
        assert by_number[1] == by_run[1]
        assert by_number[0].app_bytes == by_run[0].app_bytes
    for outside in (Runs([(28, 3)]), Runs([(-1, 2)]), [28, 30], [-1, 0]):
        with pytest.raises(IndexError):
            fetched(fetch, outside)
    with pytest.raises(SpaceError, match="larger than"):
        Fetcher(fetch).fetch([0, 7], memoryview(bytearray(5000)))


def test_null_storage_reads_nothing_and_copies_the_crop(small: MakeSpec) -> None:
    spec = small()
    layout, _ = layouts(spec)
    found = Dataset(
        spec=spec, train=layout, valid=None, manifest=None, max_file_bytes=0, max_sample_bytes=0, total_bytes=0
    )
    whole = FetchSpec(found, layout, storage=storage_named("null"), verify=True)
    result, data = fetched(whole, [0, 5])
    assert [len(one) for one in data] == [141 * 141] * 2
    assert (result.app_bytes, result.read_calls, result.read_ns) == (0, 0, 0)
    result, data = fetched(replace(whole, resize_bytes=3000), [0, 5])
    assert data == [bytes(3000)] * 2  # the slot was filled with other bytes before
    assert result.app_bytes == 0


def test_a_changed_byte_is_named_with_file_and_offset_if_asked_for(small: MakeSpec) -> None:
    fetch = fetch_of(make(small()), resize_bytes=4096)
    path = Path(fetch.layout.path(3))
    data = bytearray(path.read_bytes())
    data[183 + 5000] ^= 1
    path.write_bytes(data)
    fetched(fetch, [3])  # not asked, not found
    with pytest.raises(DatasetError, match=rf"{path} \(file number 3\) .* payload offset 5000 .*file number 3"):
        fetched(replace(fetch, verify=True), [2, 3])
    path.unlink()
    for engine in ("fast", "library"):
        with pytest.raises(DatasetError, match="No such file"):
            fetched(replace(fetch, engine=engine), [3])


def test_what_can_not_be_read_so_is_refused(small: MakeSpec) -> None:
    fetch = fetch_of(make(small()))
    with pytest.raises(UserError, match=r"reader\.verify needs a dataset made by dlemu"):
        Fetcher(replace(fetch, verify=True, layout=replace(fetch.layout, names=("a.npz",) * 6)))
    with pytest.raises(
        UserError, match=r"reader\.engine=library opens files by path, which storage memory does not have"
    ):
        Fetcher(replace(fetch, engine="library", storage=storage_named("memory")))
