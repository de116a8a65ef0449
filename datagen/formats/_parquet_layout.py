"""What lies where in a Parquet file of ours: plain values in pages of about 1 MiB.

Each column is required. A number of 4 or 8 bytes is Parquet's own type and several of them a list, as DLIO has them;
all else is a byte array of fixed length. What is said of a compressed file's offsets and sizes is what they would be
were it plain.
Format: github.com/apache/parquet-format, README.md, Encodings.md, LogicalTypes.md, src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from datagen.formats._parquet_meta import (
    FIXED,
    TYPES,
    Column,
    Stored,
    dictionary_page,
    footer,
    footer_bytes,
    page_header,
)
from datagen.formats._thrift import varint
from datagen.spec import DatasetSpec

MAGIC = b"PAR1"
LENGTH_BYTES = 4
PAGE_BYTES = 1 << 20


class Page(NamedTuple):
    """One page of a column chunk."""

    before: bytes
    """What lies before the values where nothing is compressed: header, levels, of the first page the dictionary."""
    value_bytes: int
    levels: bytes
    numbers: int


class Chunk(NamedTuple):
    """One column of a row group; offsets count from the group's start."""

    offset: int
    dictionary_bytes: int
    size_bytes: int
    payload_offset: int
    """Where its values begin among all values of the group."""
    pages: list[Page]


@dataclass(frozen=True)
class Group:
    """A row group of so many rows."""

    rows: int
    columns: tuple[Column, ...]

    @functools.cached_property
    def chunks(self) -> list[Chunk]:
        """Its column chunks, one behind the other."""
        chunks, at, payload = [], 0, 0
        for column in self.columns:
            dictionary = dictionary_page(column, column.dictionary)
            pages = list(_pages(self.rows, column, dictionary))
            size = sum(len(page.before) + page.value_bytes for page in pages)
            chunks.append(Chunk(at, len(dictionary), size, payload, pages))
            at += size
            payload += self.rows * column.width
        return chunks

    @functools.cached_property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)

    def stored(self, start: int) -> list[Stored]:
        """Return where its chunks lie in a file that has it at `start`, nothing compressed."""
        return [Stored(start + one.offset, one.dictionary_bytes, one.size_bytes, one.size_bytes) for one in self.chunks]

    @functools.cached_property
    def payload_bytes(self) -> int:
        return self.rows * sum(column.width for column in self.columns)

    @functools.cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Offset and bytes of the stretches that hold the columns to read."""
        spans: list[tuple[int, int]] = []
        for chunk, column in zip(self.chunks, self.columns, strict=True):
            if not column.read:
                continue
            if spans and sum(spans[-1]) == chunk.offset:
                spans[-1] = spans[-1][0], spans[-1][1] + chunk.size_bytes
            else:
                spans.append((chunk.offset, chunk.size_bytes))
        return spans

    def values(self) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, bytes, payload offset) of each page's values of the columns to read, column by column."""
        for chunk, column in zip(self.chunks, self.columns, strict=True):
            at, payload = chunk.offset, chunk.payload_offset
            for page in chunk.pages:
                if column.read:
                    yield at + len(page.before), page.value_bytes, payload
                at += len(page.before) + page.value_bytes
                payload += page.value_bytes


class FilePlan:
    """A whole file: equal row groups, and a last one of the rows that are left."""

    def __init__(self, rows: int, group_rows: int, columns: tuple[Column, ...]) -> None:
        self.rows = rows
        self.group_rows = min(group_rows, rows)
        self.columns = columns
        self._full = Group(self.group_rows, columns)
        self._last = Group(rows - (self.groups - 1) * self.group_rows, columns)

    @property
    def groups(self) -> int:
        return -(-self.rows // self.group_rows)

    def group(self, index: int) -> Group:
        return self._full if index < self.groups - 1 else self._last

    def start(self, index: int) -> int:
        """Return the offset of a row group."""
        return len(MAGIC) + index * self._full.size_bytes

    def payload_start(self, index: int) -> int:
        """Return where a row group's values begin among all values of the file."""
        return index * self._full.payload_bytes

    @functools.cached_property
    def tail(self) -> bytes:
        """What follows the last row group where nothing is compressed."""
        groups = [self.group(index).stored(self.start(index)) for index in range(self.groups)]
        return self.tail_of(groups, "none")

    @functools.cached_property
    def tail_bytes(self) -> int:
        """The size of `tail`, by arithmetic: with hundreds of columns and groups it takes seconds to make."""
        full = [self.start(index) for index in range(self.groups - 1)]
        first, last = self.group(0), self.group(self.groups - 1)
        stretches = [(first.rows, first.stored(0), full), (last.rows, last.stored(0), [self.start(self.groups - 1)])]
        return footer_bytes(self.columns, stretches) + LENGTH_BYTES + len(MAGIC)

    def tail_of(self, groups: Sequence[Sequence[Stored]], compression: str) -> bytes:
        """Return what follows the last row group: metadata, its length, the magic number."""
        metadata = footer(self.columns, [self.group(index).rows for index in range(self.groups)], groups, compression)
        return metadata + len(metadata).to_bytes(LENGTH_BYTES, "little") + MAGIC

    @property
    def size_bytes(self) -> int:
        last = self.groups - 1
        return self.start(last) + self.group(last).size_bytes + self.tail_bytes


def plan_of(spec: DatasetSpec, record_bytes: int) -> FilePlan:
    """Return the plan of a file; without `dataset.parquet.columns` it has one column `data` of `record_bytes`."""
    columns = tuple(_column(one.name, one.dtype, one.size, one.read) for one in spec.parquet.columns)
    if not columns:
        columns = (Column("data", FIXED, record_bytes, True),)
    return _plan(spec.num_samples_per_file, spec.parquet.row_group_size, columns)


@functools.lru_cache(maxsize=4)
def _plan(rows: int, group_rows: int, columns: tuple[Column, ...]) -> FilePlan:
    """Return a plan, that of the last files again: the metadata of hundreds of columns and groups takes a second."""
    return FilePlan(rows, group_rows, columns)


def _column(name: str, dtype: str, size: int, read: bool) -> Column:
    width = np.dtype(dtype).itemsize * size
    return Column(name, TYPES[dtype], width, read, size) if dtype in TYPES else Column(name, FIXED, width, read)


def _pages(rows: int, column: Column, before: bytes) -> Iterator[Page]:
    most = max(1, PAGE_BYTES // column.width)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        levels = _levels(count, column.length) if column.length > 1 else b""
        numbers, value_bytes = count * column.length, count * column.width
        size = len(levels) + value_bytes
        yield Page(before + page_header(numbers, size, size) + levels, value_bytes, levels, numbers)
        before = b""


def _levels(rows: int, length: int) -> bytes:
    """Return where each row's list begins (repetition levels) and that every number is there (definition levels).

    Both as runs (Encodings.md, RLE): a count, shifted by one bit, and the level that so many numbers have.
    """
    begins = (varint(1 << 1) + b"\0" + varint((length - 1) << 1) + b"\1") * rows
    are_there = varint(rows * length << 1) + b"\1"
    return b"".join(len(runs).to_bytes(4, "little") + runs for runs in (begins, are_there))
