"""Parquet's metadata in bytes: headers of pages, and the footer that tells where the pages lie.

Format: github.com/apache/parquet-format, src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.formats._thrift import BINARY, I32, I64, LIST, STRUCT, array, number, part, struct, text

_INT32, _INT64, _FLOAT, _DOUBLE, FIXED = 1, 2, 4, 5, 7
_TYPE_NAMES = {_INT32: "INT32", _INT64: "INT64", _FLOAT: "FLOAT", _DOUBLE: "DOUBLE", FIXED: "FIXED_LEN_BYTE_ARRAY"}
TYPES = {"int32": _INT32, "int64": _INT64, "float32": _FLOAT, "float64": _DOUBLE}
_PLAIN, _RLE = 0, 3
_REQUIRED, _REPEATED = 0, 2
_LIST = 3
_DICTIONARY_PAGE = 2
_MOST_DICTIONARY_BYTES = 64
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
        one = bytes(self.width // self.length)
        return one if len(one) <= _MOST_DICTIONARY_BYTES else b""

    @property
    def in_schema(self) -> tuple[str, str, int]:
        """Path, physical type and length as pyarrow tells them of a file's schema."""
        return ".".join(self.path), _TYPE_NAMES[self.type], self.width if self.type == FIXED else 0


class Stored(NamedTuple):
    """One column chunk as it lies in the file."""

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
    one = (5, I32, number(1))
    return [
        struct(required, name, one, (6, I32, number(_LIST))),
        struct((3, I32, number(_REPEATED)), (4, BINARY, text("list")), one),
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
