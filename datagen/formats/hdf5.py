"""HDF5 as DLIO lays it out: datasets `records_0` ... (samples, d1, d2, ...) and `labels` (samples) of zeros.

The HDF5 library writes and reads the structure (in its latest file format, as DLIO requests). Contiguous records bypass
the library: they are written to, and read from, the offset that it reports, which is the same as in a file written by
DLIO. Chunks are compressed here, in parallel threads, and only placed by the library. `_hdf5_read` reads the files.

The payload of a sample is its part of each dataset in order, followed by the payload of the next sample.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.errors import SpaceError
from datagen.formats import format_base as base
from datagen.formats._hdf5_read import HDF5_ERRORS, OLD_NAME, Hdf5File, Known, hdf5
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

LIBRARY = base.LibraryReads(call="h5py")
ENDINGS = ("hdf5", "h5")
LABEL_BYTES = 8  # int64, as DLIO's
_LIBC = ctypes.CDLL(None)
_PUNCH_HOLE = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE (Linux, falloc.h)
_GROUP_BYTES = 16 << 20  # bytes of chunks added at a time: with fewer, HDF5 walks all chunks more often
Chunk = tuple[tuple[int, ...], bytes]
"""A chunk's position in its dataset (index of the first element), and its stored bytes."""


class Format(base.FormatBase):
    """Reads and writes HDF5."""

    compressions = ("none", "gzip")
    reads_parts = True

    def __init__(self) -> None:
        self._known: Known = {}

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = super().unfit(spec)
        if spec.enable_chunking and not spec.hdf5.chunk_dims and spec.chunk_size < 1:
            problems.append(f"dataset.chunk_size is {spec.chunk_size}: dataset.enable_chunking needs 1 byte or more")
        parts = spec.hdf5.num_dset_per_record
        if parts > 1 and (not spec.record_dims or spec.record_dims[0] % parts):
            problems.append(
                f"dataset.hdf5.num_dset_per_record is {parts}: wanted 1, or a number that divides the first of "
                f"dataset.record_dims, which is {list(spec.record_dims)}"
            )
        return problems or _unfit_shapes(spec)

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes | None:
        if _is_chunked(spec):
            return None
        payload: base.Sizes = shapes.prod(axis=1) * spec.element_bytes * spec.num_samples_per_file
        if not len(payload):
            return payload
        # The structure has the same size for all shapes
        size_bytes, _, _ = _outline(spec, tuple(shapes[0].tolist()))
        return payload + (size_bytes - int(payload[0]))

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        if _is_chunked(job.spec):
            _write_chunked(job, writer)
        else:
            _write_plain(job, writer, buffer)

    def open(self, source: base.Source, samples: int, *, called: bool = False) -> Hdf5File:
        return Hdf5File(source, samples, self._known, called=called)

    def load(self, file: base.AnyFile, index: int, samples: int, indexes: base.Indexes) -> base.Sample:
        try:
            with hdf5().File(file if isinstance(file, LibraryFile) else file.name, "r") as opened:
                names = [f"records_{i}" for i in range(len(opened)) if f"records_{i}" in opened] or [OLD_NAME]
                data = b"".join(np.ascontiguousarray(opened[name][index]).tobytes() for name in names)
        except HDF5_ERRORS as error:
            raise base.damaged(file.name, f"h5py can't read sample {index} ({error})", 0) from error
        return base.Sample(memoryview(data), memoryview(data), index * len(data))


def _unfit_shapes(spec: DatasetSpec) -> list[str]:
    record = _dataset_shape(spec, spec.record_dims or (2, 2))[1:]
    problems = []
    chunk, max_shape = spec.hdf5.chunk_dims, spec.hdf5.max_shape
    if chunk and (len(chunk) != len(record) + 1 or min(chunk) < 1):
        wanted = f"{len(record) + 1} numbers of 1 or more, samples and then a record's {len(record)} axes"
        problems.append(f"dataset.hdf5.chunk_dims is {list(chunk)}: wanted {wanted}")
    if max_shape and len(max_shape) != len(record):
        problems.append(f"dataset.hdf5.max_shape is {list(max_shape)}: wanted {len(record)} numbers, a record's axes")
    elif max_shape and spec.record_dims and any(a < b for a, b in zip(max_shape, record, strict=True)):
        problems.append(f"dataset.hdf5.max_shape is {list(max_shape)}: wanted at least the record's {list(record)}")
    return problems


def _is_chunked(spec: DatasetSpec) -> bool:
    return bool(spec.compression == "gzip" or spec.enable_chunking or spec.hdf5.chunk_dims or spec.hdf5.max_shape)


def _dataset_shape(spec: DatasetSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of each dataset of records; like DLIO, omit a first axis of 1 in `record_dims`."""
    record = (shape[0] // spec.hdf5.num_dset_per_record, *shape[1:])
    if spec.record_dims and record[0] == 1:
        record = record[1:]
    return (spec.num_samples_per_file, *record)


def _chunk_shape(spec: DatasetSpec, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the chunk shape for a dataset of this shape; None: h5py chooses it, as in DLIO."""
    if spec.hdf5.chunk_dims:
        wanted = spec.hdf5.chunk_dims
    elif spec.enable_chunking:
        axes = max(1, len(shape) - 1)
        wanted = (1, *[math.ceil((spec.chunk_size / spec.element_bytes) ** (1 / axes))] * (len(shape) - 1))
    else:
        return None
    return tuple(min(a, b) for a, b in zip(wanted, shape, strict=True))


def _outline(spec: DatasetSpec, shape: tuple[int, ...]) -> tuple[int, dict[int, bytes], list[int]]:
    """Return `Skeleton.outline` of an unchunked file, and the offset of each dataset, labels last."""
    h5py = hdf5()
    extents = []
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # allocates the datasets although nothing is written
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    with skeleton() as temporary:
        with _new_file(temporary) as file:
            for name, size, element in _datasets(spec, shape):
                kind = h5py.h5t.py_create(np.dtype(element))
                dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(size), layout)
                extents.append((int(dataset.get_offset()), math.prod(size) * np.dtype(element).itemsize))
        return *temporary.outline(extents), [offset for offset, _ in extents]


@contextlib.contextmanager
def _new_file(temporary: Skeleton) -> Iterator[Any]:
    """Create a file as h5py.File(..., libver="latest") does, but without creation times. Raises SpaceError.

    Old releases of h5py store the creation time in the root group, with which `verify` could not reproduce a file.
    """
    h5py = hdf5()
    creation, access = h5py.h5p.create(h5py.h5p.FILE_CREATE), h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    creation.set_obj_track_times(False)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    with writing():
        file = h5py.File(h5py.h5f.create(temporary.path, h5py.h5f.ACC_TRUNC, creation, access))
    try:
        yield file
    finally:
        with writing():
            file.close()


def _datasets(spec: DatasetSpec, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for part in range(spec.hdf5.num_dset_per_record):
        yield f"records_{part}", _dataset_shape(spec, shape), spec.record_element_type
    yield "labels", (spec.num_samples_per_file,), "int64"


def _write_plain(job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write an unchunked file sequentially: the pieces of the structure and the datasets, by offset."""
    _, pieces, offsets = _outline(job.spec, job.shape)
    parts = job.spec.hdf5.num_dset_per_record
    step = job.payload_bytes if parts == 1 else job.record_bytes
    contents: dict[int, bytes | int] = {**pieces, **{offset: part for part, offset in enumerate(offsets)}}
    for offset in sorted(contents):
        writer.write(bytes(offset - writer.position))
        content = contents[offset]
        if isinstance(content, bytes):
            writer.write(content)
        elif content < parts:  # a dataset: its part of each sample
            for start in range(content * step // parts, job.payload_bytes, step):
                for piece in job.payload(buffer, start, start + step // parts):
                    writer.write(piece)
        else:
            for left in range(LABEL_BYTES * job.spec.num_samples_per_file, 0, -base.CHUNK_BYTES):
                writer.write(bytes(min(left, base.CHUNK_BYTES)))


def _write_chunked(job: base.FileJob, writer: Writer) -> None:
    """Let HDF5 write a skeleton (`Skeleton`), and copy each chunk to the offset that HDF5 gave it.

    Files are written outside of HDF5's calls, so that a full disk or an interruption is reported as such.
    """
    spec = job.spec
    shape = _dataset_shape(spec, job.shape)
    options: dict[str, Any] = {"chunks": _chunk_shape(spec, shape), "dtype": spec.record_element_type}
    if spec.hdf5.max_shape:
        options["maxshape"] = (shape[0], *spec.hdf5.max_shape)
    if spec.compression == "gzip":
        options |= {"compression": "gzip", "compression_opts": spec.compression_level}
    extents = []
    with skeleton() as temporary:
        with _new_file(temporary) as file:
            for part in range(spec.hdf5.num_dset_per_record):
                dataset = file.create_dataset(f"records_{part}", shape, **options)
                for group in _grouped(_chunks(job, part, shape, dataset.chunks)):
                    for offset, packed in _place(dataset.id, group):
                        _put(writer, offset, packed)
                        temporary.empty(offset, len(packed))
                        extents.append((offset, len(packed)))
            file.create_dataset("labels", data=np.zeros(shape[0], np.int64))
        _, pieces = temporary.outline(extents)
    for offset, piece in pieces.items():
        _put(writer, offset, piece)


def _grouped(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Yield groups of chunks, because HDF5 finds offsets only by iterating over all chunks."""
    group, size_bytes = [], 0
    for start, packed in chunks:
        group.append((start, packed))
        size_bytes += len(packed)
        if size_bytes >= _GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
    yield group


def _place(dataset: Any, chunks: list[Chunk]) -> list[tuple[int, bytes]]:
    """Add chunks to a dataset; return the offset of each in the file, and its bytes."""
    offsets: dict[tuple[int, ...], int] = {}
    with writing(), hdf5()._objects.phil:  # chunk_iter does not take h5py's lock, and HDF5 is not thread-safe
        for start, packed in chunks:
            dataset.write_direct_chunk(start, packed)
        dataset.chunk_iter(lambda chunk: offsets.update({chunk.chunk_offset: chunk.byte_offset}))
    return [(offsets[start], packed) for start, packed in chunks]


def _put(writer: Writer, offset: int, data: bytes) -> None:
    writer.skip(max(0, offset + len(data) - writer.position))
    writer.write_at(data, offset)


def _chunks(job: base.FileJob, part: int, shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Chunk]:
    """Yield each chunk of a dataset, compressed if needed; chunks beyond the dataset's edge are filled with zeros."""
    level = job.spec.compression_level if job.spec.compression == "gzip" else None
    grid = [range(0, axis, step) for axis, step in zip(shape[1:], chunk[1:], strict=True)]
    for first in range(0, shape[0], chunk[0]):
        slab = _slab(job, part, shape, first, min(chunk[0], shape[0] - first))
        for cell in np.ndindex(*map(len, grid)):
            start = tuple(axis[i] for axis, i in zip(grid, cell, strict=True))
            cut = tuple(slice(a, a + size) for a, size in zip(start, chunk[1:], strict=True))
            piece = slab[(slice(None), *cut)]
            full = np.zeros(chunk, slab.dtype)
            full[tuple(slice(axis) for axis in piece.shape)] = piece
            plain = full.tobytes()
            yield (first, *start), plain if level is None else zlib.compress(plain, level)


def _slab(job: base.FileJob, part: int, shape: tuple[int, ...], first: int, samples: int) -> NDArray[Any]:
    """Return one dataset's part of some samples, as an array."""
    part_bytes = job.record_bytes // job.spec.hdf5.num_dset_per_record
    slab = np.empty((samples, part_bytes), np.uint8)
    for i in range(samples):
        job.content.fill(slab[i], job.running_index, (first + i) * job.record_bytes + part * part_bytes)
    return slab.view(job.spec.record_element_type).reshape(samples, *shape[1:])


@contextlib.contextmanager
def skeleton() -> Iterator[Skeleton]:
    """Create a skeleton, which is removed on exit. Raises SpaceError."""
    with contextlib.ExitStack() as stack:
        with writing():
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="dlemu-hdf5-"))
        yield Skeleton(file.fileno(), file.name.encode())


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raise SpaceError for an error in writing the skeleton, which is in another folder than the dataset."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # h5py raises either
        folder = tempfile.tempdir or "any temporary folder"
        raise SpaceError(
            f"HDF5's temporary file can't be written in {folder} ({error}); it needs room for a few chunks of "
            "a file. Set TMPDIR to a folder with that room"
        ) from error


@dataclass(frozen=True)
class Skeleton:
    """A temporary file that HDF5 writes, sparse where the datasets are, to learn the structure and all offsets.

    It must be a real file: with other drivers, HDF5 does not gather the structure into blocks, and offsets differ.
    """

    descriptor: int
    path: bytes

    def empty(self, offset: int, size_bytes: int) -> None:
        """Free the space of bytes that are not needed any more; on file systems without holes, do nothing."""
        _LIBC.fallocate(self.descriptor, _PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size_bytes))

    def outline(self, extents: list[tuple[int, int]]) -> tuple[int, dict[int, bytes]]:
        """Return the file's size, and its bytes, by offset, except those in the `extents` (offset, bytes)."""
        size_bytes = os.fstat(self.descriptor).st_size
        pieces, at = {}, 0
        for offset, extent_bytes in [*sorted(extents), (size_bytes, 0)]:
            if offset > at:
                pieces[at] = os.pread(self.descriptor, offset - at, at)
            at = offset + extent_bytes
        return size_bytes, pieces
