"""The reading half of Parquet: row groups as they lie in the file, or as pyarrow unpacks them.

The fast way takes the column chunks as they lie, located by our layout or, in files of others, by their footer; pyarrow
parses that, and reads row groups for `reader.engine=library`.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datagen.errors import DatasetError
from datagen.formats._parquet_layout import MAGIC, FilePlan, plan_of
from datagen.formats._records import no_such_record
from datagen.formats.base import Sample, Source, damaged
from datagen.spec import DatasetSpec

READ_SLACK_BYTES = 8192
"""What aligned reading may add to each stretch."""
TAIL_BYTES = 8
"""The footer's length and the magic number."""


def decoded(path: str, where: Any, index: int, spec: DatasetSpec) -> list[memoryview]:
    """Return the buffers of the columns asked for."""
    try:
        file = pq.ParquetFile(where, memory_map=False, pre_buffer=False)
        table = file.read_row_group(index, _names(spec), use_threads=False)
    except (pa.ArrowException, EOFError) as error:
        raise damaged(path, f"pyarrow can't read row group {index} ({error})", 0) from error
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    return [memoryview(buffer).cast("B") for chunk in chunks for buffer in chunk.buffers() if buffer is not None]


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


def _names(spec: DatasetSpec) -> list[str] | None:
    return [one.name for one in spec.parquet.columns if one.read] or None


def room_bytes(spans: list[tuple[int, int]]) -> int:
    """Return the memory that reading some stretches takes."""
    return sum(size + READ_SLACK_BYTES for _, size in spans)


class RowsFile:
    """A file read by pyarrow, row by row: for looking into it, not for speed."""

    def __init__(self, path: str, where: Any) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(where)
        except (pa.ArrowException, EOFError) as error:
            raise damaged(path, f"no readable Parquet file ({error})", 0) from error

    def sample(self, index: int) -> Sample:
        """Return one row, its columns one behind the other; its payload is that of its row group."""
        metadata, first, payload_offset = self._file.metadata, 0, 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if index < first + rows:
                return self._row(group, rows, index - first, payload_offset)
            payload_offset += rows * self._row_bytes()
            first += rows
        raise no_such_record(self._path, index, first)

    def _row_bytes(self) -> int:
        return sum(_width(self._path, field) for field in self._file.schema_arrow)

    def _row(self, group: int, rows: int, row: int, payload_offset: int) -> Sample:
        try:
            table = self._file.read_row_group(group, use_threads=False)
        except (pa.ArrowException, EOFError) as error:
            raise damaged(self._path, f"pyarrow can't read row group {group} ({error})", 0) from error
        widths = [_width(self._path, field) for field in table.schema]
        columns = [b"".join(_values(column, width)) for column, width in zip(table.columns, widths, strict=True)]
        parts = zip(columns, widths, strict=True)
        data = memoryview(b"".join(column[row * width : (row + 1) * width] for column, width in parts))
        return Sample(data, memoryview(b"".join(columns)), payload_offset)


def _width(path: str, field: Any) -> int:
    try:
        return int(field.type.bit_width) // 8
    except ValueError:
        raise DatasetError(
            f"{path} has a column {field.name} of type {field.type}, whose values differ in size: read its row groups "
            "with reader.engine=fast, or make a dataset with `dlemu datagen`"
        ) from None


def _values(column: Any, width: int) -> Iterator[bytes]:
    for chunk in column.chunks:
        data = memoryview(chunk.buffers()[-1]).cast("B")
        yield bytes(data[chunk.offset * width : (chunk.offset + len(chunk)) * width])


class GroupsFile:
    """One file as row groups. Of a table laid out as ours its footer is not read."""

    def __init__(self, source: Source, spec: DatasetSpec) -> None:
        self._source, self._spec = source, spec
        self._plan: FilePlan | None = None
        self._metadata: Any = None
        if spec.parquet.columns:
            self._plan = _plan_of(source, spec, 0)
            if self._plan:
                return
        self._names = _names(spec)
        self._metadata = _metadata(source)
        counts = [self._metadata.row_group(index).num_rows for index in range(self._metadata.num_row_groups)]
        self._ends = np.cumsum(counts)

    def groups_of(self, index: int, count: int) -> range:
        """Return the row groups that hold `count` rows from `index` on.

        Raises:
            DatasetError: there are no such rows.
        """
        plan = self._plan
        rows = plan.rows if plan else int(self._ends[-1]) if len(self._ends) else 0
        if index + count > rows:
            raise no_such_record(self._source.path, index + count - 1, rows)
        if plan:
            return range(index // plan.group_rows, (index + count - 1) // plan.group_rows + 1)
        first, last = np.searchsorted(self._ends, [index, index + count - 1], side="right").tolist()
        return range(first, last + 1)

    def spans(self, group: int) -> list[tuple[int, int]]:
        """Return offset and bytes in the file of the stretches that hold the columns asked for."""
        if self._plan:
            start = self._plan.start(group)
            return [(start + offset, size) for offset, size in self._plan.group(group).spans]
        spans: list[tuple[int, int]] = []
        for start, size in sorted(self._chunks(group)):
            if start < len(MAGIC) or size < 0 or start + size > self._source.size_bytes:
                raise damaged(self._source.path, f"row group {group} has a column outside the file,", start)
            if spans and sum(spans[-1]) == start:
                spans[-1] = spans[-1][0], spans[-1][1] + size
            else:
                spans.append((start, size))
        return spans

    def values(self, group: int) -> list[tuple[int, int, int]]:
        """Return (offset in the file, bytes, payload offset) of the values asked for; none for files of others."""
        plan = self._plan or self._plan_of_records
        if plan is None:
            return []
        start, payload = plan.start(group), plan.payload_start(group)
        return [(start + at, size, payload + before) for at, size, before in plan.group(group).values()]

    @functools.cached_property
    def _plan_of_records(self) -> FilePlan | None:
        """The plan of a file of ours without named columns: the size of its records stands in its schema."""
        schema = self._metadata.schema
        if self._spec.parquet.columns or len(schema) != 1 or schema.column(0).length <= 0:
            return None
        return _plan_of(self._source, self._spec, schema.column(0).length)

    def largest_bytes(self) -> int:
        """Return the most memory that reading one of its row groups takes."""
        if self._plan:
            return room_bytes(self._plan.group(0).spans)
        return max((room_bytes(self.spans(group)) for group in range(len(self._ends))), default=0)

    def _chunks(self, group: int) -> list[tuple[int, int]]:
        row_group = self._metadata.row_group(group)
        chunks = []
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if self._names is not None and column.path_in_schema.partition(".")[0] not in self._names:
                continue
            start = column.data_page_offset
            if column.has_dictionary_page:
                start = min(start, column.dictionary_page_offset)
            chunks.append((start, column.total_compressed_size))
        return chunks


def _plan_of(source: Source, spec: DatasetSpec, record_bytes: int) -> FilePlan | None:
    """Return the plan of a file of ours with records of that size; None where the file is not laid out like that."""
    plan = plan_of(spec, record_bytes)
    ours = plan.size_bytes == source.size_bytes and _footer_bytes(source) == len(plan.tail) - TAIL_BYTES
    return plan if ours else None


def _footer_bytes(source: Source) -> int:
    """Return the length of a file's metadata."""
    tail = bytes(source.read(max(source.size_bytes - TAIL_BYTES, 0), min(TAIL_BYTES, source.size_bytes)))
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or len(MAGIC) + size + TAIL_BYTES > source.size_bytes:
        raise damaged(source.path, "no end of a Parquet file: it is truncated or no Parquet", source.size_bytes)
    return size


def _metadata(source: Source) -> Any:
    size = _footer_bytes(source) + TAIL_BYTES
    footer = MAGIC + bytes(source.read(source.size_bytes - size, size))
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError) as error:
        raise damaged(source.path, f"the footer can't be parsed ({error})", source.size_bytes - size) from error
