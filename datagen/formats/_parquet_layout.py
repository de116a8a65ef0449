"""Where everything lies in a Parquet file of ours: plain values, no levels, no dictionary, nothing compressed.

Each column is required; a number of 4 or 8 bytes is Parquet's own type, all else a byte array of fixed length. Pages
hold about 1 MiB. Format: github.com/apache/parquet-format, README.md and src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from datagen.formats._thrift import BINARY, I32, I64, LIST, STRUCT, array, number, struct, text
from datagen.spec import DatasetSpec

MAGIC = b"PAR1"
PAGE_BYTES = 1 << 20
_INT32, _INT64, _FLOAT, _DOUBLE, _FIXED = 1, 2, 4, 5, 7
_TYPES = {"int32": _INT32, "int64": _INT64, "float32": _FLOAT, "float64": _DOUBLE}
_PLAIN, _RLE = 0, 3


@dataclass(frozen=True)
class Column:
    """One column of a file."""

    name: str
    type: int
    """Parquet's number of its physical type."""
    width: int
    """Bytes of a value."""
    read: bool


class Page(NamedTuple):
    """One page of a column chunk."""

    header: bytes
    value_bytes: int


class Chunk(NamedTuple):
    """One column of a row group; offsets count from the group's start."""

    offset: int
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
            pages = list(_pages(self.rows, column.width))
            size = sum(len(page.header) + page.value_bytes for page in pages)
            chunks.append(Chunk(at, size, payload, pages))
            at += size
            payload += self.rows * column.width
        return chunks

    @functools.cached_property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)

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
        """Yield (offset, bytes, payload offset) of each page's values of the columns to read."""
        for chunk, column in zip(self.chunks, self.columns, strict=True):
            at, payload = chunk.offset, chunk.payload_offset
            for page in chunk.pages:
                if column.read:
                    yield at + len(page.header), page.value_bytes, payload
                at += len(page.header) + page.value_bytes
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
        """What follows the last row group: metadata, its length, the magic number."""
        footer = self._footer()
        return footer + len(footer).to_bytes(4, "little") + MAGIC

    @property
    def size_bytes(self) -> int:
        last = self.groups - 1
        return self.start(last) + self.group(last).size_bytes + len(self.tail)

    def _footer(self) -> bytes:
        root = struct((4, BINARY, text("schema")), (5, I32, number(len(self.columns))))
        return struct(
            (1, I32, number(1)),
            (2, LIST, array(STRUCT, [root, *map(_schema_element, self.columns)])),
            (3, I64, number(self.rows)),
            (4, LIST, array(STRUCT, [self._group_meta(index) for index in range(self.groups)])),
            (6, BINARY, text("dlemu")),
        )

    def _group_meta(self, index: int) -> bytes:
        group, start = self.group(index), self.start(index)
        pairs = zip(group.chunks, self.columns, strict=True)
        chunks = [_chunk_meta(column, start + chunk.offset, chunk.size_bytes, group.rows) for chunk, column in pairs]
        return struct(
            (1, LIST, array(STRUCT, chunks)), (2, I64, number(group.size_bytes)), (3, I64, number(group.rows))
        )


def plan_of(spec: DatasetSpec, record_bytes: int) -> FilePlan:
    """Return the plan of a file; without `dataset.parquet.columns` it has one column `data` of `record_bytes`."""
    columns = tuple(_column(one.name, one.dtype, one.size, one.read) for one in spec.parquet.columns)
    if not columns:
        columns = (Column("data", _FIXED, record_bytes, True),)
    return _plan(spec.num_samples_per_file, spec.parquet.row_group_size, columns)


@functools.lru_cache(maxsize=4)
def _plan(rows: int, group_rows: int, columns: tuple[Column, ...]) -> FilePlan:
    """Return a plan, that of the last files again: the metadata of hundreds of columns and groups takes a second."""
    return FilePlan(rows, group_rows, columns)


def _column(name: str, dtype: str, size: int, read: bool) -> Column:
    width = np.dtype(dtype).itemsize * size
    return Column(name, _TYPES.get(dtype, _FIXED) if size == 1 else _FIXED, width, read)


def _pages(rows: int, width: int) -> Iterator[Page]:
    most = max(1, PAGE_BYTES // width)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        size = number(count * width)
        data = struct((1, I32, number(count)), (2, I32, number(_PLAIN)), (3, I32, number(_RLE)), (4, I32, number(_RLE)))
        yield Page(struct((1, I32, number(0)), (2, I32, size), (3, I32, size), (5, STRUCT, data)), count * width)


def _schema_element(column: Column) -> bytes:
    length = [(2, I32, number(column.width))] if column.type == _FIXED else []
    return struct((1, I32, number(column.type)), *length, (3, I32, number(0)), (4, BINARY, text(column.name)))


def _chunk_meta(column: Column, offset: int, size_bytes: int, rows: int) -> bytes:
    size = number(size_bytes)
    meta = struct(
        (1, I32, number(column.type)),
        (2, LIST, array(I32, [number(_PLAIN), number(_RLE)])),
        (3, LIST, array(BINARY, [text(column.name)])),
        (4, I32, number(0)),
        (5, I64, number(rows)),
        (6, I64, size),
        (7, I64, size),
        (9, I64, number(offset)),
    )
    return struct((2, I64, number(offset)), (3, STRUCT, meta))
