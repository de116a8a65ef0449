"""What lies where in a Parquet file of ours: plain values in pages of about 1 MiB, and the metadata in bytes.

Each column is required. A number of 4 or 8 bytes is Parquet's own type and several of them a list, as DLIO has them;
all else is a byte array of fixed length. What is reported of a compressed file's offsets and sizes is what they would
be were it plain.
Format: github.com/apache/parquet-format, README.md, Encodings.md, LogicalTypes.md, src/main/thrift/parquet.thrift;
metadata are in Thrift's compact protocol (github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.spec import DatasetSpec, ParquetColumn

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12  # types of Thrift's compact protocol


def varint(value: int) -> bytes:
    """Return a number of 7 bits a byte, the low ones first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(value: int) -> bytes:
    """Return a whole number, 0 or more, in zigzag."""
    return varint(value << 1)


def text(value: str) -> bytes:
    """Return a string."""
    data = value.encode()
    return varint(len(data)) + data


def array(kind: int, items: Sequence[bytes]) -> bytes:
    """Return a list of items of one kind."""
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
    return head + b"".join(items)


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Return a struct of fields (id, kind, value) in the order of ids."""
    return part(0, *fields) + b"\0"


def part(last: int, *fields: tuple[int, int, bytes]) -> bytes:
    """Return some fields of a struct, which come after the one of id `last`."""
    out = bytearray()
    for field, kind, value in fields:
        out.append((field - last) << 4 | kind)
        out += value
        last = field
    return bytes(out)


_INT32, _INT64, _FLOAT, _DOUBLE, FIXED = 1, 2, 4, 5, 7  # parquet.thrift: Type
_TYPE_NAMES = {_INT32: "INT32", _INT64: "INT64", _FLOAT: "FLOAT", _DOUBLE: "DOUBLE", FIXED: "FIXED_LEN_BYTE_ARRAY"}
TYPES = {"int32": _INT32, "int64": _INT64, "float32": _FLOAT, "float64": _DOUBLE}
_PLAIN, _RLE = 0, 3  # parquet.thrift: Encoding
_REQUIRED, _REPEATED = 0, 2  # parquet.thrift: FieldRepetitionType
_LIST = 3  # parquet.thrift: ConvertedType
_DICTIONARY_PAGE = 2  # parquet.thrift: PageType
_MOST_DICTIONARY_BYTES = 64  # a longer value would add to every column chunk what nobody reads
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
    def dictionary(self) -> bytes:
        """The values of its dictionary, which no page uses: one, or none where that would weigh."""
        value = bytes(self.width // self.length)
        return value if len(value) <= _MOST_DICTIONARY_BYTES else b""

    @property
    def in_schema(self) -> tuple[str, str, int]:
        """Path, physical type and length as pyarrow reports them of a file's schema."""
        return ".".join(self.path), _TYPE_NAMES[self.type], self.width if self.type == FIXED else 0


class Stored(NamedTuple):
    """One column chunk as it is in the file."""

    offset: int
    dictionary_bytes: int
    size_bytes: int
    plain_bytes: int
    """Its size were nothing compressed."""


def footer(
    columns: Sequence[Column], counts: Sequence[int], groups: Sequence[Sequence[Stored]], compression: str
) -> bytes:
    """Return a file's metadata, of the rows of each row group and where its column chunks lie."""
    root = struct((4, BINARY, text("schema")), (5, I32, number(len(columns))))
    elements = [element for column in columns for element in _schema_elements(column)]
    codec = _CODECS[compression]
    metas = [_group_meta(columns, rows, chunks, codec) for rows, chunks in zip(counts, groups, strict=True)]
    return struct(
        (1, I32, number(1)),
        (2, LIST, array(STRUCT, [root, *elements])),
        (3, I64, number(sum(counts))),
        (4, LIST, array(STRUCT, metas)),
        (6, BINARY, text("dlemu")),
    )


def footer_bytes(columns: Sequence[Column], stretches: Sequence[tuple[int, Sequence[Stored], Sequence[int]]]) -> int:
    """Return the size of a footer of uncompressed row groups that are alike but for where they begin.

    Each stretch has the rows of its groups, the chunks of one that begins at 0, and where the groups begin.
    """
    groups = sum(len(starts) for _, _, starts in stretches)
    rows = sum(rows * len(starts) for rows, _, starts in stretches)
    total = len(footer(columns, [], [], "none")) + len(number(rows)) + len(array(STRUCT, [b""] * groups))
    total -= len(number(0)) + len(array(STRUCT, []))
    for rows, chunks, starts in stretches:
        begins = np.array([chunk.offset for chunk in chunks])
        pages = begins + [chunk.dictionary_bytes for chunk in chunks]
        placeless = len(_group_meta(columns, rows, chunks, _CODECS["none"])) - _places_bytes(begins, pages)
        at = np.array(starts, np.int64).reshape(-1, 1)
        total += placeless * len(starts) + _places_bytes(at + begins, at + pages)
    return total


def _places_bytes(begins: NDArray[np.int64], pages: NDArray[np.int64]) -> int:
    """Return the bytes that the places of chunks take in `_chunk_meta`: begins twice, pages once."""
    return 2 * _numbers_bytes(begins) + _numbers_bytes(pages)


def _numbers_bytes(values: NDArray[np.int64]) -> int:
    """Return the bytes of numbers together, as `number` writes them: 7 bits a byte, after a shift by one."""
    return values.size + sum(int((values >= 1 << bits).sum()) for bits in range(6, 62, 7))


def _group_meta(columns: Sequence[Column], rows: int, chunks: Sequence[Stored], codec: int) -> bytes:
    metas = [_chunk_meta(column, stored, rows, codec) for column, stored in zip(columns, chunks, strict=True)]
    plain_bytes = sum(stored.plain_bytes for stored in chunks)
    return struct((1, LIST, array(STRUCT, metas)), (2, I64, number(plain_bytes)), (3, I64, number(rows)))


def page_header(numbers: int, plain_bytes: int, stored_bytes: int) -> bytes:
    """Return what precedes a page of so many bytes, levels included, plain and as they are stored."""
    data = struct((1, I32, number(numbers)), (2, I32, number(_PLAIN)), (3, I32, number(_RLE)), (4, I32, number(_RLE)))
    return struct((1, I32, number(0)), (2, I32, number(plain_bytes)), (3, I32, number(stored_bytes)), (5, STRUCT, data))


def dictionary_page(column: Column, stored: bytes) -> bytes:
    """Return a column's dictionary, given how it is stored.

    pyarrow's files begin each chunk with one, used or not, and DLIO's reader does not go on without.
    """
    values = column.dictionary
    header = struct((1, I32, number(len(values) // (column.width // column.length))), (2, I32, number(_PLAIN)))
    sizes = (2, I32, number(len(values))), (3, I32, number(len(stored)))
    return struct((1, I32, number(_DICTIONARY_PAGE)), *sizes, (7, STRUCT, header)) + stored


def _schema_elements(column: Column) -> list[bytes]:
    required, name = (3, I32, number(_REQUIRED)), (4, BINARY, text(column.name))
    if column.length == 1:
        width = [(2, I32, number(column.width))] if column.type == FIXED else []
        return [struct((1, I32, number(column.type)), *width, required, name)]
    one_child = (5, I32, number(1))
    return [
        struct(required, name, one_child, (6, I32, number(_LIST))),
        struct((3, I32, number(_REPEATED)), (4, BINARY, text("list")), one_child),
        struct((1, I32, number(column.type)), required, (4, BINARY, text("element"))),
    ]


def _chunk_meta(column: Column, stored: Stored, rows: int, codec: int) -> bytes:
    begins, pages = number(stored.offset), number(stored.offset + stored.dictionary_bytes)
    meta = _placeless(column, stored.size_bytes, stored.plain_bytes, rows, codec)
    places = part(7, (9, I64, pages), (11, I64, begins)) + b"\0"
    return struct((2, I64, begins), (3, STRUCT, meta + places))


@functools.lru_cache(maxsize=4096)
def _placeless(column: Column, size_bytes: int, plain_bytes: int, rows: int, codec: int) -> bytes:
    """Return the metadata of a chunk up to where it lies: alike in all full row groups, of which there are hundreds."""
    return part(
        0,
        (1, I32, number(column.type)),
        (2, LIST, array(I32, [number(_PLAIN), number(_RLE)])),
        (3, LIST, array(BINARY, [text(name) for name in column.path])),
        (4, I32, number(codec)),
        (5, I64, number(rows * column.length)),
        (6, I64, number(plain_bytes)),
        (7, I64, number(size_bytes)),
    )


MAGIC = b"PAR1"
LENGTH_BYTES = 4
PAGE_BYTES = 1 << 20  # pyarrow's default data_page_size


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
        """Return where its chunks are in a file that has it at `start`, nothing compressed."""
        return [
            Stored(start + chunk.offset, chunk.dictionary_bytes, chunk.size_bytes, chunk.size_bytes)
            for chunk in self.chunks
        ]

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
    columns = _Same(spec.parquet.columns)
    return _plan(spec.num_samples_per_file, spec.parquet.row_group_size, columns, 0 if columns.it else record_bytes)


class _Same:
    """Is equal to what holds the very same columns: to compare hundreds of them takes longer than to read a batch."""

    __slots__ = ("it",)

    def __init__(self, it: tuple[ParquetColumn, ...]) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it


@functools.lru_cache(maxsize=4)
def _plan(rows: int, group_rows: int, columns: _Same, record_bytes: int) -> FilePlan:
    """Return a plan, that of the last files again: the metadata of hundreds of columns and groups takes a second."""
    made = tuple(_column(column.name, column.dtype, column.size, column.read) for column in columns.it)
    return FilePlan(rows, group_rows, made or (Column("data", FIXED, record_bytes, True),))


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
