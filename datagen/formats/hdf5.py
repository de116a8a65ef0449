"""HDF5 as DLIO lays it out: datasets `records_0` ... (samples, d1, d2, ...) and `labels` (samples) of zeros.

The HDF5 library writes and reads the metadata (in its latest file format, as DLIO requests). Contiguous records bypass
the library: dlemu writes and reads them at the offset that the library reports, which is the same as in a file written
by DLIO. dlemu also compresses the chunks, in parallel threads; the library only places them. `_hdf5_read` reads files.

The payload of a file consists of sample after sample, and each sample of its parts in the datasets, in their order.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.errors import SpaceError
from datagen.formats import format_base as base
from datagen.formats._hdf5_read import OLD_NAME, Extent, Hdf5File, MetadataCache, hdf5
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

ENDINGS = ("hdf5", "h5")
LABELS = "labels"
Shape = tuple[int, ...]


class Format(base.FormatBase):
    compressions = ("none", "gzip")
    reads_parts = True

    def __init__(self) -> None:
        self._metadata_cache: MetadataCache = {}  # of opened files with one sample and without chunks

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = super().unfit(spec)
        if spec.enable_chunking and not spec.hdf5.chunk_dims and spec.chunk_size < 1:
            problems.append(f"dataset.chunk_size is {spec.chunk_size}: dataset.enable_chunking needs 1 byte or more")
        parts = spec.hdf5.num_dset_per_record
        if parts > 1 and (not spec.record_dims or spec.record_dims[0] % parts):
            wanted = f"1, or a number that divides the first of dataset.record_dims, which is {list(spec.record_dims)}"
            problems.append(f"dataset.hdf5.num_dset_per_record is {parts}: wanted {wanted}")
        if problems:
            return problems
        record = _dataset_shape(spec, spec.record_dims or (2, 2))[1:]
        chunk, max_shape, axes = spec.hdf5.chunk_dims, spec.hdf5.max_shape, len(record)
        if chunk and (len(chunk) != axes + 1 or min(chunk) < 1):
            wanted = f"{axes + 1} numbers of 1 or more, samples and then a record's {axes} axes"
            problems.append(f"dataset.hdf5.chunk_dims is {list(chunk)}: wanted {wanted}")
        if max_shape and len(max_shape) != axes:
            problems.append(f"dataset.hdf5.max_shape is {list(max_shape)}: wanted {axes} numbers, a record's axes")
        elif max_shape and spec.record_dims and any(a < b for a, b in zip(max_shape, record, strict=True)):
            problems.append(f"dataset.hdf5.max_shape is {list(max_shape)}: wanted at least the record's {list(record)}")
        return problems

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes | None:
        if _is_chunked(spec):
            return None
        payload: base.Sizes = base.sample_bytes(spec, shapes) * spec.num_samples_per_file
        if not len(payload):
            return payload
        size_bytes = _contiguous_layout(spec, tuple(shapes[0].tolist()))[0]
        return payload + (size_bytes - int(payload[0]))  # the metadata has one size for all shapes

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        if _is_chunked(job.spec):
            _write_chunked(job, writer)
            return
        datasets = job.spec.hdf5.num_dset_per_record
        stride = job.payload_bytes if datasets == 1 else job.record_bytes  # a single dataset is written at once
        part_bytes = stride // datasets  # bytes of each stride that belong to one dataset
        _, layout, tail = _contiguous_layout(job.spec, job.shape)
        for metadata, dataset in layout:
            writer.write(metadata)
            for start in range(dataset * part_bytes, job.payload_bytes, stride):
                for chunk in job.payload(buffer, start, start + part_bytes):
                    writer.write(chunk)
        writer.write(tail)

    def open(self, source: base.Source, samples: int, *, matched: bool = False) -> Hdf5File:
        return Hdf5File(source, samples, self._metadata_cache, matched=matched)

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        with hdf5().File(path, "r") as opened:
            names = [f"records_{i}" for i in range(len(opened)) if f"records_{i}" in opened] or [OLD_NAME]
            data = b"".join(np.ascontiguousarray(opened[name][index]).tobytes() for name in names)
        return base.Sample(memoryview(data), memoryview(data), index * len(data))


def _is_chunked(spec: DatasetSpec) -> bool:
    return bool(spec.compression == "gzip" or spec.enable_chunking or spec.hdf5.chunk_dims or spec.hdf5.max_shape)


def _dataset_shape(spec: DatasetSpec, shape: Shape) -> Shape:
    """Return the shape of each dataset of records; like DLIO, omit a first axis of 1 in `record_dims`."""
    record = (shape[0] // spec.hdf5.num_dset_per_record, *shape[1:])
    if spec.record_dims and record[0] == 1:
        record = record[1:]
    return (spec.num_samples_per_file, *record)


def _contiguous_layout(spec: DatasetSpec, shape: Shape) -> tuple[int, list[tuple[bytes, int]], bytes]:
    """Return the size of a file without chunks, and its layout: each dataset's number with the metadata before it.

    After these pairs come the metadata at the end of the file. Metadata include the labels, which are all zero.
    """
    h5py = hdf5()
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # datasets get offsets although nothing is written to them
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    extents: list[Extent] = []  # of each dataset, labels last

    def allocate(file: Any) -> None:
        records = _dataset_shape(spec, shape), np.dtype(spec.record_element_type)
        datasets = {f"records_{part}": records for part in range(spec.hdf5.num_dset_per_record)}
        datasets[LABELS] = (spec.num_samples_per_file,), np.dtype("int64")
        for name, (dims, element) in datasets.items():
            space, element_type = h5py.h5s.create_simple(dims), h5py.h5t.py_create(element)
            dataset = h5py.h5d.create(file.id, name.encode(), element_type, space, creation)
            extents.append((int(dataset.get_offset()), math.prod(dims) * element.itemsize))

    layout: list[tuple[bytes, int]] = []
    with _file_laid_out_by_hdf5(allocate) as temporary:
        in_file_order = sorted((extent, number) for number, extent in enumerate(extents[:-1]))  # without labels
        for (offset, size_bytes), number in in_file_order:
            layout.append((temporary.read(offset - temporary.tell()), number))
            temporary.seek(offset + size_bytes)
        tail = temporary.read()
        return temporary.tell(), layout, tail


@contextlib.contextmanager
def _file_laid_out_by_hdf5(fill: Callable[[Any], None]) -> Iterator[BinaryIO]:
    """Yield a temporary HDF5 file with the datasets that `fill` adds to an h5py.File. Raises SpaceError.

    It is created as by h5py.File(..., libver="latest"), but without times, because old releases of h5py store the
    creation time in the root group, and `verify` could not reproduce the file. It must be a real file: other drivers of
    HDF5 do not gather the metadata into blocks, so that offsets differ.
    """
    h5py = hdf5()
    creation, access = h5py.h5p.create(h5py.h5p.FILE_CREATE), h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    creation.set_obj_track_times(False)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    with contextlib.ExitStack() as stack:
        try:
            temporary = stack.enter_context(tempfile.NamedTemporaryFile(prefix="dlemu-hdf5-"))
            created = h5py.h5f.create(temporary.name.encode(), h5py.h5f.ACC_TRUNC, creation, access)
            with h5py.File(created) as file:
                fill(file)
        except (OSError, RuntimeError) as error:  # h5py raises either
            folder = tempfile.tempdir or "any temporary folder"
            raise SpaceError(
                f"HDF5 can't write its temporary file in {folder}: {error}. If it lacks room there, set TMPDIR to a "
                "folder with more: where records are chunked, each thread needs it for a file of the dataset"
            ) from error
        yield cast("BinaryIO", temporary)


def _write_chunked(job: base.FileJob, writer: Writer) -> None:
    """Write a file of chunks. HDF5 places them in a temporary file, which is then copied to `writer`."""
    spec = job.spec
    shape = _dataset_shape(spec, job.shape)
    options: dict[str, Any] = {"dtype": spec.record_element_type}
    chunk = spec.hdf5.chunk_dims
    if not chunk and spec.enable_chunking:
        axes = len(shape) - 1
        elements = spec.chunk_size / spec.element_bytes
        chunk = (1, *[math.ceil(elements ** (1 / max(1, axes)))] * axes)  # one sample, equally long along each axis
    if chunk:  # otherwise h5py chooses the shape of chunks, as in DLIO
        options["chunks"] = tuple(map(min, chunk, shape))
    if spec.hdf5.max_shape:
        options["maxshape"] = (shape[0], *spec.hdf5.max_shape)
    if spec.compression == "gzip":
        options |= {"compression": "gzip", "compression_opts": spec.compression_level}

    def fill(file: Any) -> None:
        for part in range(spec.hdf5.num_dset_per_record):
            dataset = file.create_dataset(f"records_{part}", shape, **options)
            for start, packed in _chunks(job, part, shape, dataset.chunks):
                dataset.id.write_direct_chunk(start, packed)
        file.create_dataset(LABELS, data=np.zeros(shape[0], np.int64))

    with _file_laid_out_by_hdf5(fill) as temporary:
        while data := temporary.read(base.CHUNK_BYTES):
            writer.write(data)


def _chunks(job: base.FileJob, part: int, shape: Shape, chunk: Shape) -> Iterator[tuple[Shape, bytes]]:
    """Yield (index of the first element, stored bytes) of each chunk of dataset `part`."""
    level = job.spec.compression_level if job.spec.compression == "gzip" else None
    part_bytes = job.record_bytes // job.spec.hdf5.num_dset_per_record
    grid = [range(0, axis, step) for axis, step in zip(shape[1:], chunk[1:], strict=True)]
    for first in range(0, shape[0], chunk[0]):
        slab = np.empty((min(chunk[0], shape[0] - first), part_bytes), np.uint8)  # the samples that share chunks
        for number, row in enumerate(slab, first):
            job.content.fill(row, job.running_index, number * job.record_bytes + part * part_bytes)
        samples = slab.view(job.spec.record_element_type).reshape(len(slab), *shape[1:])
        for start in itertools.product(*grid):
            ranges = [slice(begin, begin + size) for begin, size in zip(start, chunk[1:], strict=True)]
            values = samples[(slice(None), *ranges)]
            padded = np.zeros(chunk, values.dtype)  # a chunk may extend beyond the edges of the dataset
            padded[tuple(map(slice, values.shape))] = values
            plain = padded.tobytes()
            yield (first, *start), plain if level is None else zlib.compress(plain, level)
