"""Every format is made in, verified in and read from object stores, byte by byte."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from datagen import registry
from datagen.errors import UserError
from datagen.fetch import Fetched, Fetcher, FetchSpec
from datagen.generate import generate
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageSpec
from datagen.verify import verify
from tests.datasets import formats_with_files, make_files
from tests.object_stores import storage_of

pytestmark = pytest.mark.usefixtures("keys")
each_format = pytest.mark.parametrize("name", formats_with_files())
make = partial(make_files, threads=2)


def spec_of(name: str, folder: str) -> DatasetSpec:
    spec = DatasetSpec(
        data_folder=folder, format=name, num_files_train=3, num_samples_per_file=4, record_length_bytes=30_000
    )
    if registry.find("datagen.formats", name, "Format")().unfit(spec):
        spec = replace(spec, num_samples_per_file=1, record_length_bytes=40_300)  # tiff: 200 x 200 and a head
    return spec


def read(spec: DatasetSpec, storage: StorageSpec) -> Fetched:
    """Read all samples and compare them with what was generated."""
    found = inspect(spec, storage=storage)
    fetch = FetchSpec(found, found.train, storage=storage, verify=True)
    fetcher, samples = Fetcher(fetch), np.arange(found.train.num_samples)
    fetched = fetcher.fetch(samples, memoryview(bytearray(fetch.slot_bytes(len(samples)))))
    fetcher.close()
    return fetched


@each_format
def test_every_format_goes_there_and_back(server: Any, name: str) -> None:
    spec = spec_of(name, "s3://bucket/set")
    storage = StorageSpec(type="s3", root="bucket", options=(("endpoint_url", server.endpoint),))
    make(spec, storage)
    assert max(server.objects) > "set/dlemu.json"
    assert server.requests[-1].key == "set/dlemu.json"  # the manifest comes last
    made = server.count("PUT")
    assert generate(spec, storage).files == 0  # all are there
    assert server.count("PUT") == made
    assert verify(spec, storage) == []
    for depth, range_bytes in ((1, 0), (4, 8192)):
        fetched = read(spec, replace(storage, io_depth=depth, range_bytes=range_bytes))
        assert fetched.remote_bytes == fetched.app_bytes > 0
        assert fetched.read_calls > 0


def test_a_library_opens_no_objects(server: Any) -> None:
    spec, storage = spec_of("npz", "set"), storage_of(server).spec
    make(spec, storage)
    found = inspect(spec, storage=storage)
    with pytest.raises(UserError, match=r"reader\.engine=library opens files by path, which storage s3 does not have"):
        Fetcher(FetchSpec(found, found.train, storage=storage, engine="library"))
