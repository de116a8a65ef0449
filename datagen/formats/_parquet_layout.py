"""The layout of Parquet files that dlemu writes: plain values in pages of about 1 MiB, and encoded metadata.

All columns are required. Numbers of 4 or 8 bytes have Parquet's own types, several of them are a list, as in DLIO's
files; everything else is a byte array of fixed length. A `FilePlan` has the offsets and sizes of an uncompressed file.
Format: github.com/apache/parquet-format, README.md, Encodings.md, LogicalTypes.md, src/main/thrift/parquet.thrift;
metadata are in Thrift's compact protocol (github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from datagen.spec import Compression, DatasetSpec, ParquetColumn

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12  # types of Thrift's compact protocol


def varint(value: int) -> bytes:
    """Encode a number as a varint: 7 bits per byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """Encode an integer of 0 or more as a zigzag varint."""
    return varint(value << 1)


def string(value: str) -> bytes:
    data = value.encode()
    return varint(len(data)) + data


def list_of(item_type: int, items: Sequence[bytes]) -> bytes:
    """Encode a list of encoded items of one type."""
    if len(items) < 15:
        return bytes([len(items) << 4 | item_type]) + b"".join(items)
    return bytes([0xF0 | item_type]) + varint(len(items)) + b"".join(items)


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Encode a struct of fields (id, type, encoded value), sorted by id."""
    return fields_after(0, *fields) + b"\0"


def fields_after(last: int, *fields: tuple[int, int, bytes]) -> bytes:
    """Encode fields of a struct, of which the field with id `last` comes before them."""
    out = bytearray()
    for field_id, field_type, value in fields:
        out.append((field_id - last) << 4 | field_type)
        out += value
        last = field_id
    return bytes(out)


_INT32, _INT64, _FLOAT, _DOUBLE, FIXED = 1, 2, 4, 5, 7  # parquet.thrift: Type
_TYPE_NAMES = {_INT32: "INT32", _INT64: "INT64", _FLOAT: "FLOAT", _DOUBLE: "DOUBLE", FIXED: "FIXED_LEN_BYTE_ARRAY"}
TYPES = {"int32": _INT32, "int64": _INT64, "float32": _FLOAT, "float64": _DOUBLE}
_PLAIN, _RLE = 0, 3  # parquet.thrift: Encoding
_REQUIRED, _REPEATED = 0, 2  # parquet.thrift: FieldRepetitionType
_LIST = 3  # parquet.thrift: ConvertedType
_DICTIONARY_PAGE = 2  # parquet.thrift: PageType
_MAX_DICTIONARY_BYTES = 64  # longer values are left out: the dictionary is in every column chunk, and never used
_CODECS: dict[Compression, int] = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6}
COMPRESSIONS = tuple(_CODECS)
MAGIC = b"PAR1"
LENGTH_BYTES = 4
PAGE_BYTES = 1 << 20  # pyarrow's default data_page_size


@dataclass(frozen=True)
class Column:
    """One column of a file."""

    name: str
    type: int  # physical type, as numbered in parquet.thrift
    width: int  # bytes of a row's value
    read: bool
    length: int = 1  # numbers in each row's value; if above 1, the value is a list

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the column in the schema, outermost first."""
        return (self.name,) if self.length == 1 else (self.name, "list", "element")

    @property
    def dictionary(self) -> bytes:
        """The values of the column's dictionary, which no page uses: a single one, or none if values are long."""
        value = bytes(self.width // self.length)
        return value if len(value) <= _MAX_DICTIONARY_BYTES else b""

    @property
    def in_schema(self) -> tuple[str, str, int]:
        """Path, physical type and length as pyarrow reports them from a file's schema."""
        return ".".join(self.path), _TYPE_NAMES[self.type], self.width if self.type == FIXED else 0


class Chunk(NamedTuple):
    """Position and sizes of a column chunk: one column of a row group."""

    offset: int
    dictionary_bytes: int
    size_bytes: int
    plain_bytes: int  # size without compression


class Page(NamedTuple):
    """One page of a column chunk."""

    before: bytes
    """Bytes before the values in an uncompressed file: the dictionary (first page only), header and levels."""
    value_bytes: int
    levels: bytes
    numbers: int


def page_header(numbers: int, plain_bytes: int, stored_bytes: int) -> bytes:
    """Encode a PageHeader: the type, the sizes of the page with its levels, uncompressed and stored, DataPageHeader."""
    data = struct((1, I32, zigzag(numbers)), (2, I32, zigzag(_PLAIN)), (3, I32, zigzag(_RLE)), (4, I32, zigzag(_RLE)))
    return struct((1, I32, zigzag(0)), (2, I32, zigzag(plain_bytes)), (3, I32, zigzag(stored_bytes)), (5, STRUCT, data))


def dictionary_page(column: Column, stored: bytes) -> bytes:
    """Return the dictionary page of a column; `stored` is the (compressed) dictionary.

    Each chunk has one, as in pyarrow's files, although it is not used: DLIO's reader requires it.
    """
    values = column.dictionary
    header = struct((1, I32, zigzag(len(values) // (column.width // column.length))), (2, I32, zigzag(_PLAIN)))
    sizes = (2, I32, zigzag(len(values))), (3, I32, zigzag(len(stored)))
    return struct((1, I32, zigzag(_DICTIONARY_PAGE)), *sizes, (7, STRUCT, header)) + stored


def _schema_elements(column: Column) -> list[bytes]:
    required, name = (3, I32, zigzag(_REQUIRED)), (4, BINARY, string(column.name))
    if column.length == 1:
        width = [(2, I32, zigzag(column.width))] if column.type == FIXED else []
        return [struct((1, I32, zigzag(column.type)), *width, required, name)]
    one_child = (5, I32, zigzag(1))
    return [
        struct(required, name, one_child, (6, I32, zigzag(_LIST))),
        struct((3, I32, zigzag(_REPEATED)), (4, BINARY, string("list")), one_child),
        struct((1, I32, zigzag(column.type)), required, (4, BINARY, string("element"))),
    ]


_HEAD_OF_OFFSET, _HEAD_OF_STRUCT = fields_after(7, (9, I64, b"")), fields_after(2, (3, STRUCT, b""))


def _chunk_meta(column: Column, chunk: Chunk, rows: int, codec: int) -> bytes:
    """Encode the metadata of a column chunk: quickly, as a file may have 100,000 of them."""
    begins, pages = zigzag(chunk.offset), zigzag(chunk.offset + chunk.dictionary_bytes)
    meta = _meta_before_offsets(column, chunk.size_bytes, chunk.plain_bytes, rows, codec)
    # After the offset of the chunk comes its metadata, which end in the offsets of its pages and its dictionary
    of_chunk, of_pages, of_dictionary = (_HEAD_OF_OFFSET + offset for offset in (begins, pages, begins))
    return b"".join((of_chunk, _HEAD_OF_STRUCT, meta, of_pages, of_dictionary, b"\0\0"))


@functools.lru_cache(maxsize=4096)
def _meta_before_offsets(column: Column, size_bytes: int, plain_bytes: int, rows: int, codec: int) -> bytes:
    """Encode the metadata of a chunk up to its offsets, which is the same in all full row groups."""
    return fields_after(
        0,
        (1, I32, zigzag(column.type)),
        (2, LIST, list_of(I32, [zigzag(_PLAIN), zigzag(_RLE)])),
        (3, LIST, list_of(BINARY, [string(name) for name in column.path])),
        (4, I32, zigzag(codec)),
        (5, I64, zigzag(rows * column.length)),
        (6, I64, zigzag(plain_bytes)),
        (7, I64, zigzag(size_bytes)),
    )


@dataclass(frozen=True)
class Group:
    """A row group of `rows` rows in an uncompressed file."""

    rows: int
    columns: tuple[Column, ...]

    @functools.cached_property
    def pages(self) -> list[list[Page]]:
        return [list(_pages(self.rows, column)) for column in self.columns]

    @functools.cached_property
    def chunks(self) -> list[Chunk]:
        """The column chunks, in file order, with offsets relative to the row group."""
        chunks, at = [], 0
        for column, pages in zip(self.columns, self.pages, strict=True):
            size = sum(len(page.before) + page.value_bytes for page in pages)
            chunks.append(Chunk(at, len(dictionary_page(column, column.dictionary)), size, size))
            at += size
        return chunks

    @functools.cached_property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)

    @functools.cached_property
    def payload_bytes(self) -> int:
        return self.rows * sum(column.width for column in self.columns)

    @property
    def batches(self) -> Iterator[list[Page]]:
        """The pages in file order, about 1 MiB at a time."""
        batch, size = list[Page](), 0
        for page in itertools.chain.from_iterable(self.pages):
            if batch and size + page.value_bytes > PAGE_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(page)
            size += page.value_bytes
        yield batch

    def spans(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of each chunk of a column to read."""
        columns = zip(self.columns, self.chunks, strict=True)
        return [(chunk.offset, chunk.size_bytes) for column, chunk in columns if column.read]

    def payload(self) -> list[tuple[int, int]]:
        """Return (bytes, payload offset) of the values of each column to read."""
        sizes = [self.rows * column.width for column in self.columns]
        columns = zip(self.columns, sizes, itertools.accumulate(sizes, initial=0), strict=False)
        return [(size, offset) for column, size, offset in columns if column.read]


class FilePlan:
    """The layout of a file: equal row groups, and a last one with the remaining rows."""

    def __init__(self, rows: int, group_rows: int, columns: tuple[Column, ...]) -> None:
        self.rows = rows
        self.group_rows = min(group_rows, rows)
        self.columns = columns
        self.groups = -(-rows // self.group_rows)
        self._full = Group(self.group_rows, columns)
        self._last = Group(rows - (self.groups - 1) * self.group_rows, columns)

    def group(self, index: int) -> Group:
        return self._full if index < self.groups - 1 else self._last

    def start(self, index: int) -> int:
        return len(MAGIC) + index * self._full.size_bytes

    def payload_start(self, index: int) -> int:
        """Return the offset of a row group's values among all values of the file."""
        return index * self._full.payload_bytes

    @functools.cached_property
    def tail(self) -> bytes:
        """The bytes after the last row group of an uncompressed file."""
        groups = []
        for index in range(self.groups):
            start = self.start(index)
            groups.append([chunk._replace(offset=start + chunk.offset) for chunk in self.group(index).chunks])
        return self.tail_of(groups, "none")

    @property
    def end(self) -> int:
        return self.start(self.groups - 1) + self._last.size_bytes

    @property
    def size_bytes(self) -> int:
        return self.end + len(self.tail)

    def tail_of(self, groups: Sequence[Sequence[Chunk]], compression: Compression) -> bytes:
        """Return the bytes after the last row group: metadata (FileMetaData), its length, the magic number."""
        schema = [struct((4, BINARY, string("schema")), (5, I32, zigzag(len(self.columns))))]
        for column in self.columns:
            schema += _schema_elements(column)
        metas = []
        for index, chunks in enumerate(groups):
            rows, plain_bytes = self.group(index).rows, sum(chunk.plain_bytes for chunk in chunks)
            columns = zip(self.columns, chunks, strict=True)
            of_columns = [_chunk_meta(column, chunk, rows, _CODECS[compression]) for column, chunk in columns]
            of_group = (1, LIST, list_of(STRUCT, of_columns)), (2, I64, zigzag(plain_bytes)), (3, I64, zigzag(rows))
            metas.append(struct(*of_group))
        metadata = struct(
            (1, I32, zigzag(1)),
            (2, LIST, list_of(STRUCT, schema)),
            (3, I64, zigzag(self.rows)),
            (4, LIST, list_of(STRUCT, metas)),
            (6, BINARY, string("dlemu")),
        )
        return metadata + len(metadata).to_bytes(LENGTH_BYTES, "little") + MAGIC


def plan_of(spec: DatasetSpec, record_bytes: int) -> FilePlan:
    """Return the layout of a file; without `dataset.parquet.columns` it has one column `data` of `record_bytes`."""
    columns = spec.parquet.columns
    return _plan(spec.num_samples_per_file, spec.parquet.row_group_size, columns, 0 if columns else record_bytes)


@functools.lru_cache(maxsize=4)  # with hundreds of columns and groups, the metadata takes a second
def _plan(rows: int, group_rows: int, columns: tuple[ParquetColumn, ...], record_bytes: int) -> FilePlan:
    planned = [Column("data", FIXED, record_bytes, True)] if not columns else []
    for column in columns:
        number_type = TYPES.get(column.dtype, FIXED)
        length = 1 if number_type == FIXED else column.size
        planned.append(Column(column.name, number_type, column.value_bytes, column.read, length))
    return FilePlan(rows, group_rows, tuple(planned))


def _pages(rows: int, column: Column) -> Iterator[Page]:
    before, step = dictionary_page(column, column.dictionary), max(1, PAGE_BYTES // column.width)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        levels = _levels(count, column.length) if column.length > 1 else b""
        numbers, value_bytes = count * column.length, count * column.width
        size = len(levels) + value_bytes
        yield Page(before + page_header(numbers, size, size) + levels, value_bytes, levels, numbers)
        before = b""


def _levels(rows: int, length: int) -> bytes:
    """Encode repetition levels (0 where a row's list begins) and definition levels (all present) of a page of lists.

    Both are runs (Encodings.md, RLE): a count, shifted by one bit, and the level that this many numbers have.
    """
    repetition = (varint(1 << 1) + b"\0" + varint((length - 1) << 1) + b"\1") * rows
    definition = varint(rows * length << 1) + b"\1"
    return b"".join(len(runs).to_bytes(4, "little") + runs for runs in (repetition, definition))
