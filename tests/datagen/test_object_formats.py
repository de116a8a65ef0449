"""Every format is made in, verified in and read from an object store, byte by byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from datagen import registry
from datagen.fetch import Fetcher, FetchSpec
from datagen.formats.format_base import StreamFormat, UnreadFormat
from datagen.generate import finish, generate, prepare
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageSpec
from datagen.verify import verify
from tests.object_stores import own_server

pytestmark = pytest.mark.usefixtures("keys")
FORMATS = [
    name
    for name in registry.names("datagen.formats")
    if not isinstance(registry.find("datagen.formats", name, "Format")(), UnreadFormat)
]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_goes_there_and_back(name: str) -> None:
    spec = DatasetSpec(
        data_folder="s3://bucket/set",
        format=name,
        num_files_train=3,
        num_samples_per_file=4,
        record_length_bytes=30_000,
    )
    if registry.find("datagen.formats", name, "Format")().unfit(spec):
        spec = replace(spec, num_samples_per_file=1, record_length_bytes=40_300)  # tiff: 200 x 200 and a head
    with own_server() as server:
        storage = StorageSpec(type="s3", root="bucket", options=(("endpoint_url", server.endpoint),))
        prepare(spec, storage)
        generate(spec, storage, threads=2)
        assert finish(spec, storage).complete
        assert max(server.objects) > "set/dlemu.json"
        assert server.requests[-1].key == "set/dlemu.json"  # the manifest comes last
        made = server.count("PUT")
        assert generate(spec, storage).files == 0  # all are there
        assert server.count("PUT") == made
        assert verify(spec, storage) == []
        ways: list[tuple[int, int, Literal["fast", "library"]]] = [(1, 0, "fast"), (4, 8192, "fast"), (1, 0, "library")]
        if not isinstance(registry.find("datagen.formats", name, "Format")(), StreamFormat):
            ways.pop()  # its library takes paths alone
        for depth, range_bytes, engine in ways:
            wanted = replace(storage, io_depth=depth, range_bytes=range_bytes)
            found = inspect(spec, storage=wanted)
            fetch = FetchSpec.for_dataset(
                found,
                found.train,
                storage=wanted,
                engine=engine,
                verify=True,
            )
            fetcher, samples = Fetcher(fetch), np.arange(found.train.num_samples)
            out = memoryview(bytearray(fetch.slot_bytes(len(samples))))
            fetched = fetcher.fetch(samples, out)
            assert fetched.remote_bytes == fetched.app_bytes > 0
            fetcher.close()
