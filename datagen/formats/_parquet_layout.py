"""What lies where in a Parquet file of ours: plain values, no dictionary, pages of about 1 MiB.

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

from datagen.formats._thrift import BINARY, I32, I64, LIST, STRUCT, array, number, struct, text, varint
from datagen.spec import DatasetSpec

MAGIC = b"PAR1"
PAGE_BYTES = 1 << 20
_INT32, _INT64, _FLOAT, _DOUBLE, _FIXED = 1, 2, 4, 5, 7
_TYPE_NAMES = {_INT32: "INT32", _INT64: "INT64", _FLOAT: "FLOAT", _DOUBLE: "DOUBLE", _FIXED: "FIXED_LEN_BYTE_ARRAY"}
_TYPES = {"int32": _INT32, "int64": _INT64, "float32": _FLOAT, "float64": _DOUBLE}
_PLAIN, _RLE = 0, 3
_REQUIRED, _REPEATED = 0, 2
_LIST = 3
_CODECS = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6}
COMPRESSIONS = tuple(_CODECS)


@dataclass(frozen=True)
class Column:
    """One column of a file."""

    name: str
    type: int
    """Parquet's number of its physical type."""
    width: int
    """Bytes of a row's value."""
    read: bool
    length: int = 1
    """Numbers in each row's list; of 1 they are no list."""

    @property
    def path(self) -> tuple[str, ...]:
        """Its names in the schema, from the outside in."""
        return (self.name,) if self.length == 1 else (self.name, "list", "element")

    @property
    def in_schema(self) -> tuple[str, str, int]:
        """Path, physical type and length as pyarrow tells them of a file's schema."""
        return ".".join(self.path), _TYPE_NAMES[self.type], self.width if self.type == _FIXED else 0


class Page(NamedTuple):
    """One page of a column chunk."""

    before: bytes
    """Header and levels, as they lie before the values where nothing is compressed."""
    value_bytes: int
    levels: bytes
    numbers: int


class Stored(NamedTuple):
    """One column chunk as it lies in the file."""

    offset: int
    size_bytes: int
    plain_bytes: int
    """Its size were nothing compressed."""


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
            pages = list(_pages(self.rows, column))
            size = sum(len(page.before) + page.value_bytes for page in pages)
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
        groups = []
        for index in range(self.groups):
            start, chunks = self.start(index), self.group(index).chunks
            groups.append([Stored(start + chunk.offset, chunk.size_bytes, chunk.size_bytes) for chunk in chunks])
        return self.tail_of(groups, "none")

    def tail_of(self, groups: Sequence[Sequence[Stored]], compression: str) -> bytes:
        """Return what follows the last row group: metadata, its length, the magic number."""
        footer = self._footer(groups, _CODECS[compression])
        return footer + len(footer).to_bytes(4, "little") + MAGIC

    @property
    def size_bytes(self) -> int:
        last = self.groups - 1
        return self.start(last) + self.group(last).size_bytes + len(self.tail)

    def _footer(self, groups: Sequence[Sequence[Stored]], codec: int) -> bytes:
        root = struct((4, BINARY, text("schema")), (5, I32, number(len(self.columns))))
        elements = [element for column in self.columns for element in _schema_elements(column)]
        metas = [self._group_meta(self.group(index).rows, chunks, codec) for index, chunks in enumerate(groups)]
        return struct(
            (1, I32, number(1)),
            (2, LIST, array(STRUCT, [root, *elements])),
            (3, I64, number(self.rows)),
            (4, LIST, array(STRUCT, metas)),
            (6, BINARY, text("dlemu")),
        )

    def _group_meta(self, rows: int, chunks: Sequence[Stored], codec: int) -> bytes:
        metas = [_chunk_meta(column, stored, rows, codec) for column, stored in zip(self.columns, chunks, strict=True)]
        plain_bytes = sum(stored.plain_bytes for stored in chunks)
        return struct((1, LIST, array(STRUCT, metas)), (2, I64, number(plain_bytes)), (3, I64, number(rows)))


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


def page_header(numbers: int, plain_bytes: int, stored_bytes: int) -> bytes:
    """Return what precedes a page of so many bytes, levels included, plain and as they are stored."""
    data = struct((1, I32, number(numbers)), (2, I32, number(_PLAIN)), (3, I32, number(_RLE)), (4, I32, number(_RLE)))
    return struct((1, I32, number(0)), (2, I32, number(plain_bytes)), (3, I32, number(stored_bytes)), (5, STRUCT, data))


def _column(name: str, dtype: str, size: int, read: bool) -> Column:
    width = np.dtype(dtype).itemsize * size
    return Column(name, _TYPES[dtype], width, read, size) if dtype in _TYPES else Column(name, _FIXED, width, read)


def _pages(rows: int, column: Column) -> Iterator[Page]:
    most = max(1, PAGE_BYTES // column.width)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        levels = _levels(count, column.length) if column.length > 1 else b""
        numbers, value_bytes = count * column.length, count * column.width
        size = len(levels) + value_bytes
        yield Page(page_header(numbers, size, size) + levels, value_bytes, levels, numbers)


def _levels(rows: int, length: int) -> bytes:
    """Return where each row's list begins (repetition levels) and that every number is there (definition levels).

    Both as runs (Encodings.md, RLE): a count, shifted by one bit, and the level that so many numbers have.
    """
    begins = (varint(1 << 1) + b"\0" + varint((length - 1) << 1) + b"\1") * rows
    are_there = varint(rows * length << 1) + b"\1"
    return b"".join(len(runs).to_bytes(4, "little") + runs for runs in (begins, are_there))


def _schema_elements(column: Column) -> list[bytes]:
    required, name = (3, I32, number(_REQUIRED)), (4, BINARY, text(column.name))
    if column.length == 1:
        width = [(2, I32, number(column.width))] if column.type == _FIXED else []
        return [struct((1, I32, number(column.type)), *width, required, name)]
    one = (5, I32, number(1))
    return [
        struct(required, name, one, (6, I32, number(_LIST))),
        struct((3, I32, number(_REPEATED)), (4, BINARY, text("list")), one),
        struct((1, I32, number(column.type)), required, (4, BINARY, text("element"))),
    ]


def _chunk_meta(column: Column, stored: Stored, rows: int, codec: int) -> bytes:
    meta = struct(
        (1, I32, number(column.type)),
        (2, LIST, array(I32, [number(_PLAIN), number(_RLE)])),
        (3, LIST, array(BINARY, [text(name) for name in column.path])),
        (4, I32, number(codec)),
        (5, I64, number(rows * column.length)),
        (6, I64, number(stored.plain_bytes)),
        (7, I64, number(stored.size_bytes)),
        (9, I64, number(stored.offset)),
    )
    return struct((2, I64, number(stored.offset)), (3, STRUCT, meta))
