"""HDF5 beside what h5py's own high-level calls make, which are those of DLIO's generator."""

from __future__ import annotations

import io
import resource
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError, SpaceError
from datagen.formats.format_base import FileJob, reading
from datagen.formats.hdf5 import Format
from datagen.spec import DatasetSpec, Hdf5
from tests.datagen.sources import MemorySource, expected, job, written

Settings = dict[str, Any]
PLAIN: list[Settings] = [
    {},
    {"num_samples_per_file": 5},
    {"num_samples_per_file": 3, "record_dims": (6, 7, 3), "record_element_type": "float32"},
    {"record_dims": (1, 28, 28)},
    {"record_dims": (1,), "num_samples_per_file": 4},
    {"num_samples_per_file": 3, "record_dims": (6, 8), "hdf5": Hdf5(num_dset_per_record=3)},
    {"record_dims": (2, 8), "hdf5": Hdf5(num_dset_per_record=2)},
]
CHUNKED: list[Settings] = [
    {"compression": "gzip"},
    {"compression": "gzip", "compression_level": 9, "num_samples_per_file": 5, "compressibility": 0.6},
    {"num_samples_per_file": 3, "hdf5": Hdf5(chunk_dims=(2, 7, 50))},
    {"num_samples_per_file": 3, "enable_chunking": True, "chunk_size": 100, "record_element_type": "int16"},
    {"num_samples_per_file": 2, "hdf5": Hdf5(max_shape=(90, 90))},
    {"record_dims": (4, 9), "compression": "gzip", "hdf5": Hdf5(num_dset_per_record=2, chunk_dims=(1, 1, 5))},
]


def made(values: Settings) -> FileJob:
    return job("hdf5", values.get("record_dims", (21, 53)), **values)


def of_h5py(file_job: FileJob, shape: tuple[int, ...], **options: Any) -> bytes:
    """Make a file as DLIO's generator does, with the same bytes.

    A real file: what HDF5 writes through Python's file objects it packs more densely.
    """
    spec = file_job.spec
    parts = spec.hdf5.num_dset_per_record
    records = np.frombuffer(expected(file_job), spec.record_element_type)
    records = records.reshape(spec.num_samples_per_file, parts, *shape)
    with tempfile.NamedTemporaryFile() as file:
        with h5py.File(file.name, "w", libver="latest") as h5:
            for part in range(parts):
                data = records[:, part]
                h5.create_dataset(f"records_{part}", data.shape, dtype=data.dtype, data=data, **options)
            h5.create_dataset("labels", data=[0] * spec.num_samples_per_file)
        return Path(file.name).read_bytes()


def arrays(data: bytes) -> str:
    """Return what a file holds, as text: random bytes as floats are partly no number, which equals nothing."""
    with h5py.File(io.BytesIO(data), "r") as file:
        return repr(
            [(name, one[...].tolist(), one.dtype, one.chunks, one.id.get_offset()) for name, one in file.items()]
        )


def shape_of_part(values: Settings) -> tuple[int, ...]:
    shape: tuple[int, ...] = values.get("record_dims", (21, 53))
    shape = (shape[0] // values.get("hdf5", Hdf5()).num_dset_per_record, *shape[1:])
    return shape[1:] if shape[0] == 1 and "record_dims" in values else shape


@pytest.mark.parametrize("values", [*PLAIN, *CHUNKED], ids=str)
def test_files_are_h5pys(values: Settings) -> None:
    file_job = made(values)
    spec, options = file_job.spec, Settings()
    if spec.hdf5.chunk_dims:
        options["chunks"] = spec.hdf5.chunk_dims
    if spec.enable_chunking:
        options["chunks"] = (1, 8, 8)  # 100 bytes are 50 elements, of which 7.07 make a side
    if spec.hdf5.max_shape:
        options["maxshape"] = (spec.num_samples_per_file, *spec.hdf5.max_shape)
    if spec.compression == "gzip":
        options |= {"compression": "gzip", "compression_opts": spec.compression_level}
    mine, theirs = written(Format(), file_job), of_h5py(file_job, shape_of_part(values), **options)
    assert len(mine) == len(theirs)
    assert arrays(mine) == arrays(theirs)
    sizes = Format().file_bytes(spec, np.array([file_job.shape]))
    assert (None if sizes is None else sizes.tolist()) == ([len(mine)] if values in PLAIN else None)
    assert written(Format(), file_job) == mine, "verifying writes them again"
    assert not mine[53] & 0x20, "the root group notes no times (File Format Specification 3.0, IV.A.1.b)"


@given(first=st.integers(1, 400), second=st.integers(1, 400), samples=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_sizes_by_arithmetic(first: int, second: int, samples: int) -> None:
    spec = DatasetSpec(format="hdf5", num_samples_per_file=samples)
    sizes = Format().file_bytes(spec, np.array([(100, 100), (first, second)]))
    assert sizes is not None
    shape = (samples, first, second)
    with tempfile.NamedTemporaryFile() as sink:
        with h5py.File(sink.name, "w", libver="latest") as file:
            file.create_dataset("records_0", shape, dtype="uint8", data=np.broadcast_to(np.uint8(0), shape))
            file.create_dataset("labels", data=[0] * samples)
        assert sizes[1] == Path(sink.name).stat().st_size


@pytest.mark.parametrize("values", [{}, {"hdf5": Hdf5(chunk_dims=(1, 7, 50))}], ids=str)
def test_a_temporary_folder_without_room_is_not_told_as_the_datasets(values: Settings) -> None:
    file_job = made(values)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(SpaceError, match="temporary file"):
            written(Format(), file_job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert written(Format(), file_job)


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"compression": "lzf", "shuffle": True}])
@pytest.mark.parametrize("samples", [1, 6])
@pytest.mark.parametrize("name", ["records_0", "records"])  # the latter of old releases of DLIO
def test_files_of_others(options: Settings, samples: int, name: str, tmp_path: Path) -> None:
    array = np.arange(samples * 200, dtype=">f8").reshape(samples, 20, 10)
    data = of_datasets(**{name: {"data": array, **options}})
    path = tmp_path / "others.hdf5"
    path.write_bytes(data)
    opened = Format().open(MemorySource(data), samples)
    for index in range(samples):
        assert bytes(opened.sample(index).plain_payload) == array[index].tobytes()
        assert bytes(Format().load(str(path), index, samples).data) == array[index].tobytes()


def of_datasets(**datasets: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as h5:
        for name, options in datasets.items():
            h5.create_dataset(name, **options)
    return file.getvalue()


NEVER_WRITTEN = {"shape": (1, 5), "dtype": "u1"}


@pytest.mark.parametrize(
    ("data", "samples", "words"),
    [
        (b"", 1, "no readable HDF5 metadata"),
        (bytes(3000), 1, "no readable HDF5 metadata"),
        (of_datasets(images={"data": [[1, 2]]}), 1, "no readable HDF5 metadata"),
        (of_datasets(records_0={"data": [[1], [2]]}), 3, "holds 2 samples, not 3"),
        (of_datasets(records_0=NEVER_WRITTEN), 1, "whose bytes are not in the file"),
        (of_datasets(records_0={**NEVER_WRITTEN, "chunks": (1, 5)}), 1, "never written"),
    ],
)
def test_what_is_no_dataset_of_ours(data: bytes, samples: int, words: str) -> None:
    with pytest.raises(DatasetError, match=words), reading("file.dat"):
        Format().open(MemorySource(data), samples).sample(0).plain_payload.tobytes()


def test_a_file_with_other_bytes_around_its_records_is_not_taken_for_a_known_one() -> None:
    data = written(Format(), made({}))
    reader = Format()
    reader.open(MemorySource(data), 1)
    with pytest.raises(DatasetError, match="metadata"), reading("file.dat"):
        reader.open(MemorySource(bytes(8) + data[8:]), 1)
