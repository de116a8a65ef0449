"""What every format promises, tried on each module of `datagen.formats`: a new one is tested at birth."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest

from datagen.errors import DatasetError
from datagen.generate import files_of, generate
from datagen.groups import GroupFormat
from datagen.spec import Compression, DatasetSpec, Hdf5, ParquetColumn, ParquetSpec
from datagen.storage import memory
from datagen.storage.storage_base import StorageBase, open_storage
from datagen.verify import verify
from tests.datagen import byte_oracle
from tests.datagen.byte_oracle import Recorded
from tests.datagen.conftest import fetch_of, fetched, make
from tests.datasets import format_named, formats_with_files, make_files, storage_named
from tests.object_stores import storage_of

FORMATS = formats_with_files()
KNOWN = json.loads(byte_oracle.ORACLE.read_text())
FILES = 3
PLACES = 24
"""Places of a file at which it is cut or changed, beside its first and last bytes."""


class Case(NamedTuple):
    format: str
    samples: int
    compression: Any

    def __str__(self) -> str:
        return "-".join(map(str, self))

    def spec(self, folder: Path) -> DatasetSpec:
        return DatasetSpec(
            data_folder=str(folder),
            format=self.format,
            num_files_train=FILES,
            num_samples_per_file=self.samples,
            record_length_bytes=9000,
            compression=self.compression,
            compressibility=0.3,
        )


def cases() -> list[Case]:
    every = itertools.starmap(Case, itertools.product(FORMATS, (1, 4), get_args(Compression)))
    known = [case for case in every if not case.spec(Path("data")).check()]
    missing = set(FORMATS).difference(case.format for case in known)
    assert not missing, f"formats {missing} can't be made with default settings"
    return known


each_case = pytest.mark.parametrize("case", cases(), ids=str)


class Dataset:
    def __init__(self, case: Case, folder: Path) -> None:
        self.spec = make(case.spec(folder))
        self.fetch = fetch_of(self.spec)
        self.all = range(FILES * case.samples)
        self.first_file = self.fetch.layout.path(0)

    def read(self, samples: Sequence[int], files: StorageBase | None = None, **options: Any) -> list[bytes]:
        return fetched(replace(self.fetch, **options), samples, files)[1]

    def held(self) -> memory.Storage:
        storage = memory.Storage()
        storage.files = {str(path): path.read_bytes() for path in Path(self.spec.data_folder).rglob("*.*")}
        return storage

    def read_each(self, **options: Any) -> list[bytes]:
        """Read the samples one by one; where a format ships row groups, each with its whole group."""
        return [b"".join(self.read([sample], **options)) for sample in self.all]

    def outcomes(self, truth: list[bytes], **options: Any) -> set[str]:
        """Read the first file's samples one by one; return what became of them."""
        found = set()
        for sample in range(self.spec.num_samples_per_file):
            try:
                data = b"".join(self.read([sample], **options))
                found.add("right" if data == truth[sample] else "wrong")
            except DatasetError as error:
                found.add("error" if self.first_file in str(error) else "an error that names no file")
        return found


@pytest.mark.parametrize("case", byte_oracle.cases(), ids=lambda case: case.name)
def test_bytes_and_read_calls_are_as_they_were(case: byte_oracle.Case, tmp_path: Path) -> None:
    found, made_with = byte_oracle.record(case, tmp_path), KNOWN["versions"]
    assert byte_oracle.comparable(case, found, made_with) == byte_oracle.comparable(case, KNOWN[case.name], made_with)


def test_nothing_is_left_in_the_oracle_that_is_no_longer_made() -> None:
    assert KNOWN.keys() - {"versions"} == {case.name for case in byte_oracle.cases()}


@each_case
def test_every_sample_comes_back_from_every_storage(case: Case, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    order = [*reversed(dataset.all), 0, 0]
    assert verify(dataset.spec) == []
    groups = isinstance(format_named(case.format), GroupFormat)  # one a file here
    assert len(set(dataset.read(order, decode="full"))) == (FILES if groups else len(dataset.all))
    held = dataset.held()
    for decode in ("none", "full"):
        posix = dataset.read(order, verify=True, decode=decode)
        assert dataset.read(order, verify=True, decode=decode, storage=storage_named("direct")) == posix
        assert dataset.read(order, files=held, verify=True, decode=decode, storage=storage_named("memory")) == posix


@pytest.mark.usefixtures("keys")
@each_case
def test_objects_are_those_files_and_are_read_in_any_ranges(case: Case, server: Any, tmp_path: Path) -> None:
    dataset, storage = Dataset(case, tmp_path), storage_of(server).spec
    spec = make_files(replace(dataset.spec, data_folder="set"), storage, threads=2)
    assert server.requests[-1].key == "set/dlemu.json", "the manifest comes last"
    files = {path.replace(str(tmp_path), "set"): data for path, data in dataset.held().files.items()}
    assert server.objects == files | {"set/dlemu.json": server.objects["set/dlemu.json"]}, (
        "but for the time of its making"
    )
    writes = server.count("PUT")
    assert (generate(spec, storage).files, server.count("PUT")) == (0, writes), "all are there"
    assert verify(spec, storage) == []
    for depth, range_bytes in ((1, 0), (4, 8192)):
        pieces = replace(storage, io_depth=depth, range_bytes=range_bytes)
        result, data = fetched(fetch_of(spec, storage=pieces, verify=True), dataset.all)
        assert data == dataset.read(dataset.all)
        assert result.remote_bytes == result.app_bytes > 0
        assert result.read_calls > 0


@each_case
def test_the_usual_library_call_reads_the_same_and_bytes_are_counted(case: Case, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    plain, data = fetched(dataset.fetch, dataset.all)
    least, most = 0.5 * sum(map(len, data)), sum(map(os.path.getsize, map(dataset.fetch.layout.path, range(FILES))))
    assert least <= plain.app_bytes <= most + 4096 * len(dataset.all)
    by_library, decoded = fetched(replace(dataset.fetch, engine="library", decode="full", verify=True), dataset.all)
    assert decoded == dataset.read(dataset.all, decode="full")
    assert by_library.read_calls > 0
    assert by_library.app_bytes > least or case.format == "mmap_indexed_binary"  # the kernel counts no page faults


@pytest.mark.parametrize("storage", ["memory", "direct"])
@each_case
def test_no_call_asks_for_more_than_the_transfer_size(case: Case, storage: str, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    held, spec = dataset.held(), storage_named(storage)
    for decode in ("none", "full"):
        whole = dataset.read(dataset.all, decode=decode)
        for transfer_bytes in (1000, 4096, 5001, 1 << 30):
            watched = Recorded(held if storage == "memory" else open_storage(spec))
            options = {"decode": decode, "storage": spec, "transfer_bytes": transfer_bytes, "verify": True}
            options["engine"] = "fast"
            assert dataset.read(dataset.all, watched, **options) == whole
            most = -(-transfer_bytes // watched.alignment) * watched.alignment
            asked = [size for _, _, size in watched.calls]
            assert max(asked) <= most
            if transfer_bytes == 4096:  # every sample is larger
                assert asked.count(4096) >= len(dataset.all)


@each_case
def test_crops_are_of_the_sample(case: Case, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    whole_ones = dataset.read(dataset.all)
    assert whole_ones
    for whole, crop in zip(whole_ones, dataset.read(dataset.all, resize_bytes=1000), strict=True):
        assert crop.startswith(whole[:1000])


@each_case
def test_what_is_cut_off_is_an_error_and_never_wrong_data(case: Case, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    truth = {decode: dataset.read_each(decode=decode) for decode in ("none", "full")}
    right = Path(dataset.first_file).read_bytes()
    for size in places(right):
        Path(dataset.first_file).write_bytes(right[:size])
        assert [finding.path for finding in verify(dataset.spec)] == [dataset.first_file], size
        if case.format == "raw":  # has no structure: whatever is there is the sample
            continue
        for decode, samples in truth.items():
            outcomes = dataset.outcomes(samples, decode=decode)
            assert "error" in outcomes, size
            assert outcomes <= {"error", "right"}, size


@each_case
def test_a_changed_byte_is_found(case: Case, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    truth = dataset.read_each(decode="full")
    right = Path(dataset.first_file).read_bytes()
    known = files_of(dataset.spec).exact
    for number, at in enumerate(places(right)):
        wrong = bytearray(right)
        wrong[at] ^= 1 << number % 8
        Path(dataset.first_file).write_bytes(wrong)
        found = [finding.path for finding in verify(dataset.spec)]
        outcomes = dataset.outcomes(truth, decode="full", verify=True)
        assert outcomes <= {"error", "right"}, at
        # Where a library packs the bytes, some of them say nothing of any sample, and can't be known.
        assert found == [dataset.first_file] or (not known and outcomes == {"right"}), at


@each_case
def test_another_files_bytes_are_found(case: Case, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    other = dataset.fetch.layout.path(1)
    first = Path(dataset.first_file).read_bytes()
    Path(dataset.first_file).write_bytes(Path(other).read_bytes())
    Path(other).write_bytes(first)
    assert sorted(finding.path for finding in verify(dataset.spec)) == [dataset.first_file, other]
    with pytest.raises(DatasetError, match="is not what was generated"):
        dataset.read([0], verify=True)


SIDES = [(case, side) for case in cases() if case.samples > 1 for side in range(len(format_named(case.format).sides))]


@pytest.mark.parametrize(("case", "side"), SIDES, ids=str)
@pytest.mark.parametrize("damage", ["differs from", "it has 17 bytes, wanted", "no such file"])
def test_a_damaged_index_is_named(case: Case, side: int, damage: str, tmp_path: Path) -> None:
    dataset = Dataset(case, tmp_path)
    path = Path(format_named(case.format).sides[side].path(dataset.fetch.layout, 2))
    right = path.read_bytes()
    path.unlink()
    if damage != "no such file":
        path.write_bytes(right[:17] if "17" in damage else bytes([right[0] ^ 1]) + right[1:])
    (finding,) = verify(dataset.spec)
    assert (finding.path, damage in finding.message) == (str(path), True)


QUANTILES = {"record_length_bytes": 150, "record_length_bytes_quantiles": (100.0, 200.0)}
IMPOSSIBLE: list[tuple[str, dict[str, Any], list[str]]] = [
    ("npy", {"compression": "gzip"}, ["compression is gzip: format npy supports only none"]),
    ("npy", {"record_dims": (4, 0)}, ["record_dims[1] is 0"]),
    (
        "npy",
        {"record_dims": (4, 4), "record_length_bytes_stdev": 3},
        ["record_dims and dataset.record_length_bytes_stdev are given"],
    ),
    ("npy", {"record_element_type": "str"}, ["such as uint8 or float32"]),
    ("npy", {"record_element_type": "no such,type"}, ["such as uint8 or float32"]),
    ("npy", QUANTILES | {"record_length_bytes": 5}, ["dataset.record_length_bytes is 5, outside of"]),
    ("npy", QUANTILES | {"record_length_bytes_stdev": 7}, ["record_length_bytes_quantiles are given"]),
    ("npy", QUANTILES | {"record_length_bytes_quantiles": (200.0, 100.0)}, ["is not ascending"]),
    ("csv", {"record_element_type": "float32"}, ["format csv supports only uint8"]),
    ("jpeg", {"num_samples_per_file": 2}, ["is one sample"]),
    ("jpeg", {"record_element_type": "float32"}, ["only uint8"]),
    ("png", {"record_dims": (8,)}, ["wanted height and width"]),
    ("png", {"record_dims": (8, 8, 2)}, ["1 or 3 channels"]),
    ("jpeg", {"record_dims": (2000, 2000)}, ["2000 x 2000 pixels has"]),
    ("png", {"record_dims": (2000, 2000)}, ["2000 x 2000 pixels has"]),
    ("png", {"record_length_bytes": 90}, ["record_length_bytes is 90"]),
    ("hdf5", {"compression": "zip"}, ["none or gzip"]),
    ("hdf5", {"hdf5": Hdf5(num_dset_per_record=2)}, ["num_dset_per_record is 2"]),
    ("hdf5", {"hdf5": Hdf5(chunk_dims=(8, 8))}, ["wanted 3 numbers of 1 or more"]),
    ("hdf5", {"hdf5": Hdf5(max_shape=(8, 8)), "record_dims": (9, 8)}, ["at least the record's [9, 8]"]),
    (
        "parquet",
        {"parquet": ParquetSpec(columns=(ParquetColumn(name="a", read=False),) * 2), "record_length_bytes_resize": 5},
        ["resize is 5: wanted 0", "two columns have the same name", "none has read: true"],
    ),
]


@pytest.mark.parametrize(("name", "changes", "words"), IMPOSSIBLE, ids=str)
def test_settings_that_a_format_can_not_have_are_told(name: str, changes: dict[str, Any], words: list[str]) -> None:
    problems = DatasetSpec(format=name, **changes).check()
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))


def places(data: bytes) -> list[int]:
    """Return places of a file: its ends, and some between that are the same at each run."""
    drawn = np.random.default_rng(len(data)).integers(0, len(data), PLACES).tolist()
    return sorted({0, 1, len(data) // 2, len(data) - 2, len(data) - 1, *drawn})
