from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.content import Content
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.fetch import Fetcher
from datagen.formats.parquet import Format
from datagen.groups import max_groups
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.spec import DatasetSpec, ParquetColumn, ParquetSpec
from tests.datagen.conftest import MakeSpec, fetch_of, fetched, make
from tests.datagen.sources import payload, record_file
from tests.datasets import storage_named

COLUMNS = (
    ParquetColumn(name="label"),
    ParquetColumn(name="codes", dtype="int8", size=13),
    ParquetColumn(name="wide", size=100, read=False),
    ParquetColumn(name="id", dtype="int64"),
)
ROW_BYTES, READ_BYTES = 4 + 13 + 400 + 8, 4 + 13 + 8


def parquet(**changes: Any) -> ParquetSpec:
    return replace(ParquetSpec(columns=COLUMNS, row_group_size=40), **changes)


def spec_of(samples: int, groups: ParquetSpec) -> DatasetSpec:
    return DatasetSpec(format="parquet", num_samples_per_file=samples, parquet=groups)


DTYPES = st.sampled_from(["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"])
COLUMN_LISTS = st.lists(st.tuples(DTYPES, st.integers(1, 300)), min_size=1, max_size=20)


@given(columns=COLUMN_LISTS, samples=st.integers(1, 60), rows=st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_pyarrow_reads_what_was_written(columns: list[tuple[Any, int]], samples: int, rows: int) -> None:
    named = tuple(ParquetColumn(name=f"c{i}", dtype=dtype, size=size) for i, (dtype, size) in enumerate(columns))
    spec = spec_of(samples, ParquetSpec(columns=named, row_group_size=rows))
    data = record_file(spec, (3, 3))
    sizes = Format().file_bytes(spec, np.array([[3, 3]]))
    assert sizes is not None
    assert sizes.tolist() == [len(data)]
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.metadata.num_rows == samples
    assert file.metadata.num_row_groups == -(-samples // rows)
    at = 0
    for group in range(file.metadata.num_row_groups):
        table = file.read_row_group(group)
        for column in table.columns:
            values = b"".join(bytes(chunk.buffers()[-1]) for chunk in column.chunks)
            assert values == payload(at, at + len(values))
            at += len(values)


@pytest.fixture
def dataset(small: MakeSpec) -> DatasetSpec:
    return make(small(format="parquet", num_samples_per_file=100, parquet=parquet()))


@pytest.mark.parametrize("storage", ["posix", "direct"])
def test_a_batch_reads_each_row_group_once_and_only_columns_asked_for(dataset: DatasetSpec, storage: str) -> None:
    fetch = fetch_of(dataset, engine="fast", storage=storage_named(storage), verify=True)
    result, stretches = fetched(fetch, list(range(30, 130)))  # groups 0, 1 and 2 of file 0, group 0 of file 1
    assert len(stretches) == 2 * 4  # `wide` lies between those that are read
    rows = 40 + 40 + 20 + 40
    assert sum(map(len, stretches)) == pytest.approx(rows * READ_BYTES, rel=0.2)
    content = bytearray(40 * ROW_BYTES)
    Content(dataset.seed).fill(memoryview(content), 0, 0)
    assert bytes(content[: 40 * 4]) in stretches[0]
    if storage == "posix":
        assert result.read_calls == 2 * 4
        assert result.app_bytes == sum(map(len, stretches))


@pytest.mark.parametrize("options", [{"engine": "matched"}, {"decode": "full"}])
@pytest.mark.parametrize(("workers", "batch", "group_rows"), [(2, 7, 200), (3, 5, 40), (8, 3, 64), (3, 30, 20)])
def test_workers_in_turn_each_read_a_row_group_once_an_epoch(
    workers: int, batch: int, group_rows: int, options: dict[str, Any], small: MakeSpec
) -> None:
    packed = parquet(row_group_size=group_rows)
    made = small(format="parquet", num_files_train=1, num_files_eval=0, num_samples_per_file=200, parquet=packed)
    fetch = fetch_of(make(made), **options)
    fetchers, room = [Fetcher(fetch) for _ in range(workers)], memoryview(bytearray(fetch.slot_bytes(batch)))
    for _epoch in range(2):
        app_bytes, groups = 0, set()
        for first in range(0, 200 - batch, batch):
            wanted, worker = list(range(first, first + batch)), first // batch % workers
            groups |= {(worker, row // group_rows) for row in wanted}
            got = fetchers[worker].fetch(wanted, room)
            app_bytes += got.app_bytes
            values = [bytes(room[start : start + size]) for start, size in got.places.tolist()]
            assert values == fetched(fetch, wanted)[1], "also what an earlier batch read"
        expected = sum(fetched(fetch, [group * group_rows])[0].app_bytes for _, group in groups)
        assert app_bytes == pytest.approx(expected, rel=0.02), "and the next epoch reads them anew"


def test_scattered_rows_are_refused(small: MakeSpec) -> None:
    large = parquet(columns=(ParquetColumn(name="large", size=4000),))
    dataset = make(small(format="parquet", num_samples_per_file=100, parquet=large))
    fetched(fetch_of(dataset), list(range(95, 105)))
    scattered = [0, 45, 90, 100, 145, 190, 200, 245, 290, 300]
    with pytest.raises(SpaceError, match=r"reader\.sample_shuffle=off, .* reader\.decode=none"):
        fetched(fetch_of(dataset), scattered)


@given(batch=st.integers(1, 400), rows=st.integers(1, 90), group_rows=st.integers(1, 100), start=st.integers(0, 500))
@settings(max_examples=300)
def test_most_groups_is_enough(batch: int, rows: int, group_rows: int, start: int) -> None:
    touched = {(row // rows, row % rows // group_rows) for row in range(start, start + batch)}
    assert len(touched) <= max_groups(batch, rows, group_rows)


def of_others(spec: DatasetSpec, table: Any, compression: str) -> Any:
    """Write the only file of a dataset by pyarrow; return its metadata."""
    path = Path(layouts(spec)[0].path(0))
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, row_group_size=spec.parquet.row_group_size, compression=compression)
    return pq.read_metadata(path)


@pytest.mark.parametrize("columns", [("b", "s"), ("s",)])
def test_files_of_others(small: MakeSpec, columns: tuple[str, ...]) -> None:
    parquet = ParquetSpec(columns=tuple(ParquetColumn(name=name) for name in columns), row_group_size=30)
    spec = small(format="parquet", num_files_train=1, num_files_eval=0, num_samples_per_file=100, parquet=parquet)
    table = pa.table({"a": list(range(100)), "b": [i % 3 for i in range(100)], "s": [f"text {i}" for i in range(100)]})
    metadata = of_others(spec, table, "zstd")
    result, stretches = fetched(fetch_of(spec), list(range(20, 40)))
    chunks = [metadata.row_group(group).column("abs".index(name)) for group in (0, 1) for name in columns]
    assert sum(map(len, stretches)) == result.app_bytes == sum(chunk.total_compressed_size for chunk in chunks)
    _, decoded = fetched(fetch_of(spec, engine="library"), list(range(20, 40)))
    assert b"text 0text 1" in b"".join(decoded)
    with pytest.raises(DatasetError, match="nothing to compare"):
        fetched(fetch_of(spec, verify=True), [0])
    with pytest.raises(UserError, match=r"train/img_0_of_1\.parquet has no column c; .* columns that it has: a, b, s$"):
        fetch_of(replace(spec, parquet=replace(parquet, columns=(*parquet.columns, ParquetColumn(name="c")))))


@pytest.mark.parametrize("values", [64 * 500, 7], ids=["different", "alike"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_files_as_dlio_makes_them(small: MakeSpec, compression: Any, values: int) -> None:
    """Nullable columns, arrays as lists of fixed size, dictionaries where values repeat, statistics."""
    columns = (ParquetColumn(name="t", size=500), ParquetColumn(name="k", dtype="int64"))
    parquet = ParquetSpec(columns=columns, row_group_size=16)
    options = {"num_files_train": 1, "num_files_eval": 0, "num_samples_per_file": 64, "compression": compression}
    spec = small(format="parquet", parquet=parquet, **options)
    numbers, keys = np.arange(64 * 500, dtype=np.float32) % values, np.arange(64) % 5
    arrays = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 500)
    metadata = of_others(spec, pa.table({"t": arrays, "k": pa.array(keys)}), compression)
    wanted = numbers[16 * 500 : 32 * 500].tobytes() + keys[16:32].tobytes()
    for way in ({"decode": "full"}, {"engine": "library"}):
        assert b"".join(fetched(fetch_of(spec, **way), [20, 30])[1]) == wanted
    chunks = [metadata.row_group(1).column(index).total_compressed_size for index in (0, 1)]
    result, stretches = fetched(fetch_of(spec), [20, 30])
    assert result.app_bytes == sum(map(len, stretches)) == sum(chunks)


def test_which_columns_are_read_may_change(dataset: DatasetSpec) -> None:
    other = replace(dataset, parquet=parquet(columns=tuple(replace(one, read=not one.read) for one in COLUMNS)))
    assert make(other) == other
    result, _ = fetched(fetch_of(other), [0])
    assert result.app_bytes == pytest.approx(40 * 400, rel=0.05)
    with pytest.raises(DatasetError, match=r"made with other settings: parquet\.row_group_size is"):
        inspect(replace(dataset, parquet=parquet(row_group_size=41)))
