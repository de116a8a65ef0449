"""The writing half of Parquet: pages of content, as they are or compressed each by itself, and the footer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from datagen.buffers import AlignedBuffer
from datagen.formats._parquet_layout import MAGIC, PAGE_BYTES, FilePlan, Group, Page
from datagen.formats._parquet_meta import Stored, dictionary_page, page_header
from datagen.formats.format_base import FileJob
from datagen.spec import BLOCK_BYTES
from datagen.storage.storage_base import Writer


def write_plain(job: FileJob, plan: FilePlan, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write a file as it is laid out."""
    writer.write(MAGIC)
    for index in range(plan.groups):
        _write_group(job, plan.group(index), plan.payload_start(index), writer, buffer)
    writer.write(plan.tail)


def write_packed(job: FileJob, plan: FilePlan, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write a file whose pages are compressed; where they lie is known as they are written."""
    compression = job.spec.compression
    # Snappy knows no levels.
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
                data, header = _packed(codec, page, values)
                writer.write(header + data)
                at += len(header) + len(data)
                plain += len(header) + len(page.levels) + page.value_bytes
            chunks.append(Stored(begin, len(dictionary), at - begin, plain))
        groups.append(chunks)
    writer.write(plan.tail_of(groups, compression))


def _packed(codec: Any, page: Page, values: memoryview) -> tuple[bytes, bytes]:
    """Return a page's compressed bytes, levels and values together, and its header."""
    plain = page.levels + values if page.levels else values
    data = codec.compress(plain, asbytes=True)
    return data, page_header(page.numbers, len(plain), len(data))


def _write_group(job: FileJob, group: Group, payload: int, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write a row group, as many pages at a time as make a chunk of content."""
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
    """Yield the pages of a row group with their values, which the next page may overwrite."""
    for pages in _batches(group):
        yield from _with_values(job, pages, payload, buffer)
        payload += sum(page.value_bytes for page in pages)


def _with_values(
    job: FileJob, pages: list[Page], payload: int, buffer: AlignedBuffer
) -> Iterator[tuple[Page, memoryview]]:
    """Yield pages with their values, those from `payload` on, made in one go."""
    values = _values(job, payload, sum(page.value_bytes for page in pages), buffer)
    at = 0
    for page in pages:
        yield page, values[at : at + page.value_bytes]
        at += page.value_bytes


def _batches(group: Group) -> Iterator[list[Page]]:
    """Yield a row group's pages, as many at a time as make a chunk of content."""
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
    """Return a stretch of the file's payload, which is made in whole blocks."""
    before = payload % BLOCK_BYTES
    made = buffer.view(before + size_bytes)
    job.content.fill(made, job.running_index, payload - before)
    return made[before:]
