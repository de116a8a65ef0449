"""Parquet as pyarrow unpacks it: row groups for training, single rows for looking into a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datagen.errors import DatasetError
from datagen.formats._records import no_such_record
from datagen.formats.format_base import Sample, Source, damaged
from datagen.spec import DatasetSpec


@contextmanager
def parsing(path: str, what: str, offset: int = 0) -> Iterator[None]:
    """Tell what pyarrow can't make sense of as a damaged file."""
    try:
        yield
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        if getattr(error, "errno", None):  # the file system's; a codec's has none
            raise
        raise damaged(path, f"{what} ({error})", offset) from error


def names_of(spec: DatasetSpec) -> list[str] | None:
    """Return the columns asked for; None for all there are."""
    return [one.name for one in spec.parquet.columns if one.read] or None


def decoded(path: str, where: Any, index: int, spec: DatasetSpec) -> list[memoryview]:
    """Return the values of the columns asked for in a row group, numbers of lists one behind the other.

    Values that differ in size come with the buffer that tells where each begins.
    """
    with parsing(path, "no readable Parquet file"):
        file = pq.ParquetFile(where, memory_map=False, pre_buffer=False)
    table = _row_group(path, file, index, names_of(spec))
    return [data for column in table.columns for chunk in column.chunks for data in _buffers(_flat(chunk))]


class Stream(io.RawIOBase):
    """A source as Python's kind of file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size_bytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._source.size_bytes - self._at, 0)
        data = bytes(self._source.read(self._at, left if size < 0 else min(size, left)))
        self._at += len(data)
        return data


class RowsFile:
    """A file read row by row, not for speed."""

    def __init__(self, path: str, where: Any) -> None:
        self._path = path
        with parsing(path, "no readable Parquet file"):
            self._file = pq.ParquetFile(where)
        self._unpacked: tuple[int, list[bytes]] = -1, []

    def sample(self, index: int) -> Sample:
        """Return one row, its columns one behind the other; its payload is that of its row group."""
        metadata, first = self._file.metadata, 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if index < first + rows:
                return self._row(group, rows, first, index - first)
            first += rows
        raise no_such_record(self._path, index, first)

    def _row(self, group: int, rows: int, first: int, row: int) -> Sample:
        if self._unpacked[0] != group:
            self._unpacked = group, self._columns(group)
        columns = self._unpacked[1]
        widths = [len(values) // rows for values in columns]
        parts = zip(columns, widths, strict=True)
        data = memoryview(b"".join(values[row * width : (row + 1) * width] for values, width in parts))
        return Sample(data, memoryview(b"".join(columns)), first * sum(widths))

    def _columns(self, group: int) -> list[bytes]:
        table = _row_group(self._path, self._file, group, None)
        return [_values(self._path, field.name, column) for field, column in zip(table.schema, table, strict=True)]


def _row_group(path: str, file: Any, index: int, names: list[str] | None) -> Any:
    with parsing(path, f"pyarrow can't read row group {index}"):
        return file.read_row_group(index, names, use_threads=False)


def _flat(chunk: Any) -> Any:
    """Return the numbers of lists, out of them."""
    while isinstance(chunk.type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        chunk = chunk.flatten()
    return chunk


def _buffers(chunk: Any) -> Iterator[memoryview]:
    if width := _width(chunk.type):
        yield _fixed(chunk, width)
    else:
        yield from (memoryview(buffer).cast("B") for buffer in chunk.buffers() if buffer is not None)


def _values(path: str, name: str, column: Any) -> bytes:
    """Return all values of a column, which must be of one size.

    Raises:
        DatasetError: they are not.
    """
    flat = [_flat(chunk) for chunk in column.chunks]
    listed = isinstance(column.type, (pa.ListType, pa.LargeListType))
    width = _width(flat[0].type) if flat else 0
    if not width or (listed and len(pc.unique(pc.list_value_length(column))) > 1):
        raise DatasetError(
            f"{path} has a column {name} of type {column.type}, whose values differ in size: read its row groups "
            "with reader.engine=fast, or make a dataset with `dlemu datagen`"
        )
    return b"".join(_fixed(chunk, width) for chunk in flat)


def _width(kind: Any) -> int:
    """Return the bytes of a value; 0 where they differ, or are less than one."""
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


def _fixed(chunk: Any, width: int) -> memoryview:
    data = memoryview(chunk.buffers()[-1] or b"").cast("B")
    return data[chunk.offset * width : (chunk.offset + len(chunk)) * width]
