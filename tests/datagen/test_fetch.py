from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datagen.errors import DatasetError, UserError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import Dataset
from datagen.layout import layouts
from tests.datagen.conftest import MakeSpec, fetch_of, fetched, make
from tests.datasets import storage_named


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
