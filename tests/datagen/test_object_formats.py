"""Every format is made in, verified in and read from object stores, byte by byte, by every engine and library."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from datagen import registry
from datagen.errors import DatasetError, UserError
from datagen.fetch import Fetched, Fetcher, FetchSpec
from datagen.formats.format_base import UnreadFormat
from datagen.generate import finish, generate, prepare
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import LIBRARIES_OF_OBJECTS, StorageSpec, open_storage
from datagen.verify import verify
from tests.object_stores import S3, rclone_server, storage_of, why_no_rclone

pytestmark = pytest.mark.usefixtures("keys")
FORMATS = [
    name
    for name in registry.names("datagen.formats")
    if not isinstance(registry.find("datagen.formats", name, "Format")(), UnreadFormat)
]
Engine = Literal["fast", "library"]
each_format = pytest.mark.parametrize("name", FORMATS)
each_library = pytest.mark.parametrize("library", LIBRARIES_OF_OBJECTS)


def spec_of(name: str, folder: str) -> DatasetSpec:
    spec = DatasetSpec(
        data_folder=folder, format=name, num_files_train=3, num_samples_per_file=4, record_length_bytes=30_000
    )
    if registry.find("datagen.formats", name, "Format")().unfit(spec):
        spec = replace(spec, num_samples_per_file=1, record_length_bytes=40_300)  # tiff: 200 x 200 and a head
    return spec


def make(spec: DatasetSpec, storage: StorageSpec) -> None:
    prepare(spec, storage)
    generate(spec, storage, threads=2)
    assert finish(spec, storage).complete


def read(spec: DatasetSpec, storage: StorageSpec, engine: Engine) -> Fetched:
    """Read all samples and compare them with what was generated."""
    found = inspect(spec, storage=storage)
    fetch = FetchSpec(found, found.train, storage=storage, engine=engine, verify=True)
    fetcher, samples = Fetcher(fetch), np.arange(found.train.num_samples)
    fetched = fetcher.fetch(samples, memoryview(bytearray(fetch.slot_bytes(len(samples)))))
    fetcher.close()
    return fetched


def with_library(server: S3, library: str) -> StorageSpec:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'dlemu[{library}]'")
    return server.spec(options={"storage_library": library})


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
    ways: tuple[tuple[int, int, Engine], ...] = ((1, 0, "fast"), (4, 8192, "fast"), (1, 0, "library"))
    for depth, range_bytes, engine in ways:
        fetched = read(spec, replace(storage, io_depth=depth, range_bytes=range_bytes), engine)
        assert fetched.remote_bytes == fetched.app_bytes > 0
        assert fetched.read_calls > 0


@pytest.mark.parametrize("name", ["npz", "hdf5", "webdataset", "indexed_binary", "tfrecord"])
def test_a_library_fetches_what_its_samples_need_and_no_more(server: Any, name: str) -> None:
    spec = spec_of(name, "set")
    storage = storage_of(server).spec
    make(spec, storage)
    server.requests.clear()
    stored = sum(len(data) for key, data in server.objects.items() if "/train/" in key and "/index/" not in key)
    fetched = read(spec, storage, "library")
    payload = 12 * 29_929  # 173 x 173
    assert payload <= fetched.app_bytes <= stored + 12 * 8192  # io.BufferedReader asks for 8 KiB of a record's head
    data_gets = [request for request in server.requests if request.method == "GET" and "/train/" in request.key]
    if name in ("npz", "hdf5", "webdataset"):
        assert fetched.read_calls == len(data_gets) == 3  # each object once, whole


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    if why_no_rclone():
        pytest.skip(why_no_rclone())
    with rclone_server(tmp_path_factory.mktemp("libraries")) as server:
        yield server


@each_library
@each_format
def test_the_libraries_of_scripts_read_every_format(name: str, library: str, real_server: S3) -> None:
    spec, storage = spec_of(name, f"{library}/{name}"), with_library(real_server, library)
    make(spec, storage)
    fetched = read(spec, storage, "library")
    assert fetched.remote_bytes == fetched.app_bytes > 0
    assert fetched.read_calls > 0


@each_library
def test_the_libraries_of_scripts_survive_the_fork_to_a_worker(library: str, real_server: S3) -> None:
    spec, storage = spec_of("npz", f"forked/{library}"), with_library(real_server, library)
    make(spec, storage)
    read(spec, storage, "library")  # so that it has threads and connections here
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        worker = context.Process(target=read, args=(spec, storage, "library"))
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
    read(spec, storage, "library")


@each_library
def test_what_a_library_of_scripts_fails_at_is_told_as_that(
    library: str, real_server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, storage = spec_of("hdf5", f"failing/{library}"), with_library(real_server, library)
    make(spec, storage)
    found = inspect(spec, storage=storage)
    fetch = FetchSpec(found, found.train, storage=storage, engine="library")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    fetcher, out = Fetcher(fetch), memoryview(bytearray(fetch.slot_bytes(1)))
    with pytest.raises(DatasetError, match=rf"failing/{library}/train/.*: {library} can't read it \(.*credentials"):
        fetcher.fetch([0], out)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3torchconnector", None)
    options = (("endpoint_url", "http://h"), ("storage_library", "s3torchconnector"))
    storage = open_storage(StorageSpec(type="s3", root="bucket", options=options))
    with pytest.raises(UserError, match=r"storage_library=s3torchconnector needs .*'dlemu\[s3torchconnector\]'"):
        storage.check_library()
