"""The layout of the Parquet files that dlemu writes: plain values in pages of about 1 MiB, and encoded metadata.

All columns are required. Numbers of 4 or 8 bytes have Parquet's own types; several per row are a list, as DLIO writes
them. Any other value is a byte array of fixed length. A `FilePlan` has the offsets and sizes of an uncompressed file.
Format: github.com/apache/parquet-format, README.md, Encodings.md, LogicalTypes.md, src/main/thrift/parquet.thrift.
Metadata are encoded in Thrift's compact protocol (github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
Below, a Thrift struct is written as {field id in parquet.thrift: value}.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from datagen.spec import Compression, DatasetSpec, ParquetColumn
from datagen.storage.storage_base import Span

Value = tuple[int, bytes]  # a value in Thrift's compact protocol: (type, encoded bytes)
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12  # types of the compact protocol
_INT32, _INT64, _FLOAT, _DOUBLE, FIXED = 1, 2, 4, 5, 7  # parquet.thrift: Type
_TYPE_NAMES = {_INT32: "INT32", _INT64: "INT64", _FLOAT: "FLOAT", _DOUBLE: "DOUBLE", FIXED: "FIXED_LEN_BYTE_ARRAY"}
TYPES = {"int32": _INT32, "int64": _INT64, "float32": _FLOAT, "float64": _DOUBLE}
_PLAIN, _RLE = 0, 3  # parquet.thrift: Encoding
_REQUIRED, _REPEATED = 0, 2  # parquet.thrift: FieldRepetitionType
_CONVERTED_LIST = 3  # parquet.thrift: ConvertedType
_DICTIONARY_PAGE = 2  # parquet.thrift: PageType
_MAX_DICTIONARY_BYTES = 64  # maximum size of the value in a column's dictionary
_CODECS: dict[Compression, int] = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6}
COMPRESSIONS = tuple(_CODECS)
MAGIC = b"PAR1"
LENGTH_BYTES = 4  # size of the field after the metadata that has their length
PAGE_BYTES = 1 << 20  # pyarrow's default data_page_size


def varint(value: int) -> bytes:
    """Encode a number as a varint: 7 bits per byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def i32(value: int) -> Value:
    """Encode an integer of at least 0 as a zigzag varint."""
    return _I32, varint(value << 1)


def i64(value: int) -> Value:
    return _I64, varint(value << 1)


def text(value: str) -> Value:
    data = value.encode()
    return _BINARY, varint(len(data)) + data


def list_of(items: Sequence[Value]) -> Value:
    """Encode a list of one or more values, all of one type."""
    item_type, _ = items[0]
    count = len(items)
    head = bytes([count << 4 | item_type]) if count < 15 else bytes([0xF0 | item_type]) + varint(count)
    return _LIST, head + b"".join(data for _, data in items)


def struct(fields: Mapping[int, Value]) -> Value:
    """Encode a struct of `fields`, which are in the order of their ids."""
    return _STRUCT, encode_fields(fields) + b"\0"


def encode_fields(fields: Mapping[int, Value], previous_id: int = 0) -> bytes:
    """Encode fields of a struct by ascending id; `previous_id` is the id of the field before them."""
    out = bytearray()
    for field_id, (field_type, data) in fields.items():
        out.append((field_id - previous_id) << 4 | field_type)
        out += data
        previous_id = field_id
    return bytes(out)


@dataclass(frozen=True, eq=False)  # hashed by identity: a file's metadata may look up columns 100,000 times
class Column:
    name: str
    type: int  # physical type, as numbered in parquet.thrift
    width: int  # bytes of a row's value
    read: bool  # whether training reads the column
    length: int = 1  # numbers in a row's value, which is a list if they are several

    @property
    def path(self) -> tuple[str, ...]:
        """Names on the path to the column in the schema, outermost first."""
        return (self.name,) if self.length == 1 else (self.name, "list", "element")

    @property
    def dictionary(self) -> bytes:
        """The encoded dictionary: one value, or none if values are long. No page uses it; DLIO's reader requires it."""
        value = bytes(self.width // self.length)
        return value if len(value) <= _MAX_DICTIONARY_BYTES else b""

    @property
    def in_schema(self) -> tuple[str, str, int]:
        """(path, physical type, length) as pyarrow reports them from a file's schema."""
        return ".".join(self.path), _TYPE_NAMES[self.type], self.width if self.type == FIXED else 0


class Chunk(NamedTuple):
    """Position and sizes of a column chunk: one column of a row group."""

    offset: int  # from the start of its row group; in a compressed file, from the start of the file
    dictionary_bytes: int  # size of the dictionary page at its start
    size_bytes: int
    plain_bytes: int  # size without compression


class Page(NamedTuple):
    # Bytes before the values in an uncompressed file: the dictionary (only for the first page), header and levels
    before: bytes
    value_bytes: int
    levels: bytes
    num_values: int  # several per row in a column of lists


def page_header(num_values: int, plain_bytes: int, stored_bytes: int) -> bytes:
    """Encode a PageHeader; the sizes are bytes of levels and values, uncompressed (plain) and as stored."""
    data = struct({1: i32(num_values), 2: i32(_PLAIN), 3: i32(_RLE), 4: i32(_RLE)})  # DataPageHeader
    return struct({1: i32(0), 2: i32(plain_bytes), 3: i32(stored_bytes), 5: data})[1]


def dictionary_page(column: Column, stored: bytes) -> bytes:
    """Return the dictionary page of a column; `stored` is the dictionary as stored, compressed or not."""
    plain_bytes = len(column.dictionary)
    num_values = plain_bytes // (column.width // column.length)
    header = struct({1: i32(num_values), 2: i32(_PLAIN)})  # DictionaryPageHeader
    return struct({1: i32(_DICTIONARY_PAGE), 2: i32(plain_bytes), 3: i32(len(stored)), 7: header})[1] + stored


def _schema_elements(column: Column) -> list[Value]:
    """Encode the SchemaElements of a column: one, or three if it holds lists."""
    name = text(column.name)
    if column.length == 1:
        width = {2: i32(column.width)} if column.type == FIXED else {}
        return [struct({1: i32(column.type), **width, 3: i32(_REQUIRED), 4: name})]
    return [
        struct({3: i32(_REQUIRED), 4: name, 5: i32(1), 6: i32(_CONVERTED_LIST)}),  # field 5: number of children
        struct({3: i32(_REPEATED), 4: text("list"), 5: i32(1)}),
        struct({1: i32(column.type), 3: i32(_REQUIRED), 4: text("element")}),
    ]


def _chunk_meta(column: Column, chunk: Chunk, start: int, rows: int, codec: int) -> Value:
    """Encode a ColumnChunk of a row group at `start`; its metadata ends in the offsets of pages and dictionary."""
    dictionary_offset = i64(start + chunk.offset)
    pages_offset = i64(start + chunk.offset + chunk.dictionary_bytes)
    metadata = _meta_before_offsets(column, chunk.size_bytes, chunk.plain_bytes, rows, codec)
    metadata += encode_fields({9: pages_offset, 11: dictionary_offset}, previous_id=7) + b"\0"
    return struct({2: dictionary_offset, 3: (_STRUCT, metadata)})


@functools.lru_cache(maxsize=4096)
def _meta_before_offsets(column: Column, size_bytes: int, plain_bytes: int, rows: int, codec: int) -> bytes:
    """Encode the ColumnMetaData of a column chunk up to its offsets: this part is the same in all full row groups."""
    encodings = list_of([i32(_PLAIN), i32(_RLE)])
    path = list_of([text(name) for name in column.path])
    fields = {1: i32(column.type), 2: encodings, 3: path, 4: i32(codec)}
    fields |= {5: i64(rows * column.length), 6: i64(plain_bytes), 7: i64(size_bytes)}
    return encode_fields(fields)


class Group:
    """The layout of a row group of `rows` rows in an uncompressed file, independent of its position in the file."""

    def __init__(self, rows: int, columns: tuple[Column, ...]) -> None:
        self.rows = rows
        self.size_bytes = self.payload_bytes = 0
        self.pages: list[list[Page]] = []  # of each column
        self.chunks: list[Chunk] = []  # of each column, with offsets relative to the row group
        self.spans: list[Span] = []  # (offset, bytes) of each chunk that training reads
        self.payload: list[tuple[int, int]] = []  # (bytes, offset in the group's payload) of the values in these chunks
        for column in columns:
            dictionary = before = dictionary_page(column, column.dictionary)
            pages: list[Page] = []
            max_page_rows = max(1, PAGE_BYTES // column.width)
            for first_row in range(0, rows, max_page_rows):
                page_rows = min(max_page_rows, rows - first_row)
                levels = _levels(page_rows, column.length) if column.length > 1 else b""
                num_values = page_rows * column.length
                page_bytes = len(levels) + page_rows * column.width
                before += page_header(num_values, page_bytes, page_bytes) + levels
                pages.append(Page(before, page_rows * column.width, levels, num_values))
                before = b""
            value_bytes = rows * column.width
            chunk_bytes = sum(len(page.before) for page in pages) + value_bytes
            self.pages.append(pages)
            self.chunks.append(Chunk(self.size_bytes, len(dictionary), chunk_bytes, chunk_bytes))
            if column.read:
                self.spans.append((self.size_bytes, chunk_bytes))
                self.payload.append((value_bytes, self.payload_bytes))
            self.size_bytes += chunk_bytes
            self.payload_bytes += value_bytes

    def batches(self) -> Iterator[list[Page]]:
        """Yield the pages in file order, in batches of about 1 MiB."""
        batch, batch_bytes = list[Page](), 0
        for page in itertools.chain.from_iterable(self.pages):
            if batch and batch_bytes + page.value_bytes > PAGE_BYTES:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(page)
            batch_bytes += page.value_bytes
        yield batch


class PlacedGroup(NamedTuple):
    """A row group of a file, and its position."""

    group: Group
    offset: int  # in the file
    payload_offset: int  # where its values begin in the file's payload


class FilePlan:
    """The layout of a file: equal row groups, and a last one with the remaining rows."""

    def __init__(self, rows: int, group_rows: int, columns: tuple[Column, ...]) -> None:
        self.rows = rows
        self.group_rows = min(group_rows, rows)
        self.columns = columns
        self._full_groups = (rows - 1) // self.group_rows
        self._full = Group(self.group_rows, columns)
        self._last = Group(rows - self._full_groups * self.group_rows, columns)
        self.groups_end = self.place(self._full_groups).offset + self._last.size_bytes

    def place(self, index: int) -> PlacedGroup:
        """Return row group `index` of the file."""
        group = self._full if index < self._full_groups else self._last
        offset = len(MAGIC) + index * self._full.size_bytes
        return PlacedGroup(group, offset, payload_offset=index * self._full.payload_bytes)

    @property
    def groups(self) -> Iterator[PlacedGroup]:
        return map(self.place, range(self._full_groups + 1))

    @functools.cached_property
    def tail(self) -> bytes:
        """The bytes after the last row group of an uncompressed file."""
        return self.encode_tail([(start, group.chunks) for group, start, _ in self.groups], "none")

    @property
    def size_bytes(self) -> int:
        return self.groups_end + len(self.tail)

    def encode_tail(self, groups: Sequence[tuple[int, Sequence[Chunk]]], compression: Compression) -> bytes:
        """Return what follows the row groups (offset, chunks): metadata (FileMetaData), its length, and the magic."""
        schema = [struct({4: text("schema"), 5: i32(len(self.columns))})]
        schema += itertools.chain.from_iterable(map(_schema_elements, self.columns))
        row_groups = []
        for (group, _, _), (start, chunks) in zip(self.groups, groups, strict=True):
            columns = [
                _chunk_meta(column, chunk, start, group.rows, _CODECS[compression])
                for column, chunk in zip(self.columns, chunks, strict=True)
            ]
            plain_bytes = sum(chunk.plain_bytes for chunk in chunks)
            row_groups.append(struct({1: list_of(columns), 2: i64(plain_bytes), 3: i64(group.rows)}))
        fields = {1: i32(1), 2: list_of(schema), 3: i64(self.rows), 4: list_of(row_groups), 6: text("dlemu")}
        _, metadata = struct(fields)
        return metadata + len(metadata).to_bytes(LENGTH_BYTES, "little") + MAGIC


def file_plan(spec: DatasetSpec, record_bytes: int) -> FilePlan:
    """Return the layout of a file; without `dataset.parquet.columns`, it has one column `data` of `record_bytes`."""
    columns = spec.parquet.columns or (ParquetColumn(name="data", dtype="uint8", size=record_bytes),)
    return _cached_plan(spec.num_samples_per_file, spec.parquet.row_group_size, columns)


@functools.lru_cache(maxsize=4)  # encoding metadata of hundreds of columns and row groups takes a second
def _cached_plan(rows: int, group_rows: int, columns: tuple[ParquetColumn, ...]) -> FilePlan:
    typed_columns = []
    for column in columns:
        physical_type = TYPES.get(column.dtype, FIXED)
        length = 1 if physical_type == FIXED else column.size
        typed_columns.append(Column(column.name, physical_type, column.value_bytes, column.read, length))
    return FilePlan(rows, group_rows, tuple(typed_columns))


def _levels(rows: int, length: int) -> bytes:
    """Encode the levels of a page of lists: repetition (0 at the start of each row's list), definition (1: not null).

    They are stored as runs (Encodings.md, RLE): the number of values, shifted left by one bit, and their level.
    """
    repetition = (varint(1 << 1) + b"\0" + varint((length - 1) << 1) + b"\1") * rows
    definition = varint(rows * length << 1) + b"\1"
    return b"".join(len(runs).to_bytes(4, "little") + runs for runs in (repetition, definition))
