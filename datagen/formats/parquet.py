"""Parquet: fixed-width columns in row groups; training reads whole row groups, of the columns requested.

Files are written without a Parquet library, so that the bytes of an uncompressed file do not depend on its version:
`_parquet_layout` lays out pages, column chunks and the footer. `_parquet_read` reads files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats._parquet_layout import (
    COMPRESSIONS,
    MAGIC,
    PAGE_BYTES,
    FilePlan,
    Group,
    Page,
    Stored,
    dictionary_page,
    page_header,
    plan_of,
)
from datagen.formats._parquet_read import (
    TAIL_BYTES,
    GroupsFile,
    RowsFile,
    Stream,
    decode_columns,
    footer_bytes,
    max_compressed_bytes,
    spans_bytes,
)
from datagen.formats.format_base import FileJob, LibraryReads, PackedSample, Sample, Source, sample_bytes
from datagen.groups import CachedSource, GroupBytes
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

LIBRARY = LibraryReads(call="pyarrow.parquet")
FOOTER_BYTES = 64 << 10
"""Bytes that pyarrow reads first, from the end of a file (`kDefaultFooterReadSize` in parquet/properties.h)."""
_SUPPORTED = f"{', '.join(COMPRESSIONS[:-1])} and {COMPRESSIONS[-1]}"


class Format:
    """Reads and writes Parquet."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = []
        if spec.compression not in COMPRESSIONS:
            problems.append(f"dataset.compression is {spec.compression}: format parquet supports {_SUPPORTED}")
        if spec.record_length_bytes_resize:
            wanted = "wanted 0, because whole row groups are passed to the trainer"
            problems.append(f"dataset.record_length_bytes_resize is {spec.record_length_bytes_resize}: {wanted}")
        if spec.parquet.row_group_size < 1:
            problems.append(f"dataset.parquet.row_group_size is {spec.parquet.row_group_size}: wanted 1 or more")
        columns = spec.parquet.columns
        problems += [
            f"dataset.parquet.columns: {column.name} has size {column.size}: wanted 1 or more"
            for column in columns
            if column.size < 1
        ]
        if len({column.name for column in columns}) != len(columns):
            problems.append("dataset.parquet.columns: two columns have the same name")
        if columns and not any(column.read for column in columns):
            problems.append("dataset.parquet.columns: none has read: true, so there is nothing to train on")
        return problems

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if spec.compression != "none":
            return None
        if spec.parquet.columns:
            return np.full(len(shapes), plan_of(spec, 0).size_bytes, np.int64)
        unique, places = np.unique(sample_bytes(spec, shapes), return_inverse=True)
        sizes = [plan_of(spec, size).size_bytes for size in unique.tolist()]
        return np.array(sizes, np.int64)[places]

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        plan = plan_of(job.spec, job.record_bytes)
        (write_plain if job.spec.compression == "none" else write_compressed)(job, plan, writer, buffer)

    def open(self, source: Source, samples: int) -> RowsFile:
        data = source.read(0, source.size_bytes)
        return RowsFile(source.path, pa.py_buffer(data))

    def load(self, path: str, index: int, samples: int) -> Sample:
        return RowsFile(path, path).sample(index)

    def group_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> GroupBytes:
        """Return the memory of the largest row group."""
        sizes = [0] if spec.parquet.columns else np.unique(sample_bytes(spec, shapes)).tolist()
        groups = [plan_of(spec, size).group(0) for size in sizes]
        plain = max(spans_bytes(group.spans) for group in groups)
        return GroupBytes(plain if spec.compression == "none" else max(map(max_compressed_bytes, groups)), plain)

    def open_groups(self, source: Source, spec: DatasetSpec) -> GroupsFile:
        """Open a file for reading row groups. Raises DatasetError if it is not a Parquet file."""
        return GroupsFile(source, spec)

    def read_footer(self, source: Source) -> Source:
        """Read the footer as pyarrow does: by one read of the usual size, and a second one of a larger footer."""
        start = source.size_bytes - min(FOOTER_BYTES, source.size_bytes)
        cached = CachedSource(source, [(start, source.read(start, source.size_bytes - start))])
        size = footer_bytes(cached) + TAIL_BYTES
        if size <= source.size_bytes - start:
            return cached
        return CachedSource(cached, [(source.size_bytes - size, source.read(source.size_bytes - size, size))])

    def called_spans(self, groups: GroupsFile, index: int) -> list[tuple[int, int]]:
        return groups.called_spans(index)

    def decode_group(self, source: Source, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Read the columns requested of a row group by pyarrow, through the storage."""
        return decode_columns(source.path, pa.PythonFile(Stream(source), mode="r"), index, spec)

    def load_group(self, where: str | LibraryFile, index: int, spec: DatasetSpec) -> list[memoryview]:
        if isinstance(where, str):
            return decode_columns(where, where, index, spec)
        return decode_columns(where.name, pa.PythonFile(where, mode="r"), index, spec)


class Packer:
    """Writes samples as rows of a column `data` by pyarrow: uncompressed, of fixed length if all are equally long."""

    wants_arrays = False
    ending = "parquet"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._rows: list[bytes] = []

    def add(self, sample: PackedSample) -> None:
        self._rows.append(bytes(sample.data))

    def finish(self) -> bytes:
        sizes = {len(row) for row in self._rows}
        kind = pa.binary(sizes.pop()) if len(sizes) == 1 else pa.large_binary()
        table = pa.table({"data": pa.array(self._rows, kind)})
        with pa.BufferOutputStream() as out:
            pq.write_table(table, out, compression="none", use_dictionary=False, write_statistics=False)
            self._writer.write(memoryview(out.getvalue()))
        return b""


def write_plain(job: FileJob, plan: FilePlan, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write an uncompressed file according to its plan."""
    writer.write(MAGIC)
    for index in range(plan.groups):
        _write_group(job, plan.group(index), plan.payload_start(index), writer, buffer)
    writer.write(plan.tail)


def write_compressed(job: FileJob, plan: FilePlan, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write a file whose pages are compressed; offsets are known only as pages are written."""
    compression = job.spec.compression
    # Snappy has no levels.
    level = None if compression == "snappy" else job.spec.compression_level
    codec = pa.Codec(compression, compression_level=level)
    writer.write(MAGIC)
    at, groups = len(MAGIC), []
    for index in range(plan.groups):
        group, chunks = plan.group(index), []
        pages = _pages_with_values(job, group, plan.payload_start(index), buffer)
        for column, chunk in zip(plan.columns, group.chunks, strict=True):
            dictionary = dictionary_page(column, codec.compress(column.dictionary, asbytes=True))
            begin, plain = at, chunk.dictionary_bytes
            writer.write(dictionary)
            at += len(dictionary)
            for page, values in itertools.islice(pages, len(chunk.pages)):
                data, header = _compress(codec, page, values)
                writer.write(header + data)
                at += len(header) + len(data)
                plain += len(header) + len(page.levels) + page.value_bytes
            chunks.append(Stored(begin, len(dictionary), at - begin, plain))
        groups.append(chunks)
    writer.write(plan.tail_of(groups, compression))


def _compress(codec: Any, page: Page, values: memoryview) -> tuple[bytes, bytes]:
    """Return a page's levels and values, compressed together, and its header."""
    plain = page.levels + values if page.levels else values
    data = codec.compress(plain, asbytes=True)
    return data, page_header(page.numbers, len(plain), len(data))


def _write_group(job: FileJob, group: Group, payload: int, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write a row group, about 1 MiB of pages at a time."""
    for pages in _batches(group):
        pieces: list[bytes | memoryview] = []
        for page, values in _with_values(job, pages, payload, buffer):
            pieces += [page.before, values]
            payload += page.value_bytes
        if len(pages) == 1:
            for piece in pieces:
                writer.write(piece)
        else:
            writer.write(b"".join(pieces))


def _pages_with_values(
    job: FileJob, group: Group, payload: int, buffer: AlignedBuffer
) -> Iterator[tuple[Page, memoryview]]:
    """Yield the pages of a row group with their values, which are valid until the next page."""
    for pages in _batches(group):
        yield from _with_values(job, pages, payload, buffer)
        payload += sum(page.value_bytes for page in pages)


def _with_values(
    job: FileJob, pages: list[Page], payload: int, buffer: AlignedBuffer
) -> Iterator[tuple[Page, memoryview]]:
    """Yield pages with their values; the first value has payload offset `payload`. All are generated at once."""
    values = _values(job, payload, sum(page.value_bytes for page in pages), buffer)
    at = 0
    for page in pages:
        yield page, values[at : at + page.value_bytes]
        at += page.value_bytes


def _batches(group: Group) -> Iterator[list[Page]]:
    """Yield a row group's pages in batches of about 1 MiB."""
    batch: list[Page] = []
    waiting = 0
    for page in (page for chunk in group.chunks for page in chunk.pages):
        if batch and waiting + page.value_bytes > PAGE_BYTES:
            yield batch
            batch, waiting = [], 0
        batch.append(page)
        waiting += page.value_bytes
    yield batch


def _values(job: FileJob, payload: int, size_bytes: int, buffer: AlignedBuffer) -> memoryview:
    """Generate `size_bytes` of the file's payload from offset `payload` on, in whole blocks."""
    before = payload % BLOCK_BYTES
    made = buffer.view(before + size_bytes)
    job.content.fill(made, job.running_index, payload - before)
    return made[before:]
