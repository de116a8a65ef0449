"""Parquet: columns of fixed width in row groups; training reads whole row groups of the requested columns.

Files are written without a Parquet library, so that the bytes of an uncompressed file do not depend on its version.
`_parquet_layout` computes pages, column chunks and the footer. To read a row group, dlemu locates it by that layout or,
in files of other tools, by the footer. pyarrow decodes values: whole row groups for training, single rows to verify.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.formats import _parquet_layout as layout
from datagen.formats import format_base as base
from datagen.formats._source import merge_spans
from datagen.groups import GroupBytes, GroupFormat
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import Span, Writer

HAS_COLUMNS = True  # `dataset.parquet.columns` applies
FOOTER_BYTES = 64 << 10  # pyarrow reads these first, at the end of a file (`kDefaultFooterReadSize`, properties.h)
# pyarrow merges reads at most 8 KiB apart, into reads of at most 32 MiB (`CoalesceReadRanges` in arrow/io/caching.cc)
MAX_HOLE_BYTES, MAX_READ_BYTES = 8192, 32 << 20
Batch = list[tuple[layout.Page, memoryview]]  # pages of a row group, and their values
TAIL_BYTES = layout.LENGTH_BYTES + len(layout.MAGIC)  # the footer's length and the magic number
READ_SLACK_BYTES = 8192  # maximum bytes that alignment adds to the read of a span
# Maximum bytes of a decoded number, by physical type; the width of a fixed-length byte array is in the schema
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_OFFSET_BYTES = 8  # size of an offset in Arrow's arrays of variable-length values: 4, or 8 in its large types


class Format(GroupFormat):
    compressions = layout.COMPRESSIONS

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = super().unfit(spec)
        if spec.record_length_bytes_resize:
            wanted = "wanted 0, because whole row groups are passed to the trainer"
            problems.append(f"dataset.record_length_bytes_resize is {spec.record_length_bytes_resize}: {wanted}")
        columns = spec.parquet.columns
        if len({column.name for column in columns}) != len(columns):
            problems.append("dataset.parquet.columns: two columns have the same name")
        if columns and not any(column.read for column in columns):
            problems.append("dataset.parquet.columns: none has read: true, so there is nothing to train on")
        return problems

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes | None:
        if spec.compression != "none":
            return None
        if spec.parquet.columns:
            return np.full(len(shapes), layout.file_plan(spec, 0).size_bytes, np.int64)
        return base.map_distinct(base.sample_bytes(spec, shapes), lambda size: layout.file_plan(spec, size).size_bytes)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        plan = layout.file_plan(job.spec, job.record_bytes)
        writer.write(layout.MAGIC)
        if job.spec.compression != "none":
            _write_compressed(job, plan, writer, buffer)
            return
        for placed in plan.groups:
            for batch in _page_batches(job, placed, buffer):
                parts = [part for page, values in batch for part in (page.before, values)]
                if len(batch) > 1:  # small pages are written together
                    parts = [b"".join(parts)]
                for part in parts:
                    writer.write(part)
        writer.write(plan.tail)

    def open_groups(self, source: base.Source, spec: DatasetSpec, *, matched: bool = False) -> ParquetGroups:
        return ParquetGroups(source, spec, matched)

    def decode_group(self, where: str | base.SourceStream, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Return the buffers of the requested columns: values (of lists, too) and offsets of variable-length values."""
        opened = where if isinstance(where, str) else pa.PythonFile(where, mode="r")
        file = pq.ParquetFile(opened, memory_map=False, pre_buffer=False)
        table = file.read_row_group(index, _requested_names(spec), use_threads=False)
        return [data for column in table.columns for chunk in column.chunks for data in _buffers(chunk)]


def _write_compressed(job: base.FileJob, plan: layout.FilePlan, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write compressed pages, then the metadata: offsets are known only after compression."""
    compression = job.spec.compression
    level = None if compression == "snappy" else job.spec.compression_level  # Snappy has no levels
    codec = pa.Codec(compression, compression_level=level)
    groups = []
    for placed in plan.groups:
        chunks = []
        pages = itertools.chain.from_iterable(_page_batches(job, placed, buffer))  # of all columns, one after the other
        for column, planned, column_pages in zip(plan.columns, placed.group.chunks, placed.group.pages, strict=True):
            start = writer.position
            dictionary = layout.dictionary_page(column, codec.compress(column.dictionary, asbytes=True))
            writer.write(dictionary)
            plain_bytes = planned.dictionary_bytes
            for page, values in itertools.islice(pages, len(column_pages)):
                plain = page.levels + values if page.levels else values
                packed = codec.compress(plain, asbytes=True)
                header = layout.page_header(page.num_values, len(plain), len(packed))
                writer.write(header + packed)
                plain_bytes += len(header) + len(plain)
            chunks.append(layout.Chunk(start, len(dictionary), writer.position - start, plain_bytes))
        groups.append((0, chunks))  # these chunks have their offsets in the file, so the group's is 0
    writer.write(plan.encode_tail(groups, compression))


def _page_batches(job: base.FileJob, placed: layout.PlacedGroup, buffer: AlignedBuffer) -> Iterator[Batch]:
    """Yield the pages of a row group in batches; values are valid until the next batch."""
    payload_offset = placed.payload_offset
    for pages in placed.group.batches():
        skipped = payload_offset % BLOCK_BYTES  # content is generated from the start of a block
        ends = list(itertools.accumulate((page.value_bytes for page in pages), initial=skipped))
        values = buffer.view(ends[-1])
        job.content.fill(values, job.running_index, payload_offset - skipped)
        payload_offset += ends[-1] - skipped
        yield [(page, values[begin:end]) for page, (begin, end) in zip(pages, itertools.pairwise(ends), strict=True)]


class ParquetGroups:
    """An open file. Row groups are located by `_plan` if dlemu wrote the file uncompressed, else by the footer."""

    def __init__(self, source: base.Source, spec: DatasetSpec, matched: bool) -> None:
        """Read the footer; with `matched`, read footer and columns by the calls that pyarrow would make."""
        self.source = source
        self._spec = spec
        self._merge_limits = (MAX_HOLE_BYTES, MAX_READ_BYTES) if matched else ()  # of `merge_spans`; (): defaults
        self._planned_spans: dict[int, list[Span]] = {}  # by rows of a group, relative to its offset
        self._plan: layout.FilePlan | None = None
        self._ends: Sequence[int]  # for each row group, the number of the file's first row after it
        if matched:  # as pyarrow: read the end of the file, and once more if the footer is longer
            self._cache_end(min(FOOTER_BYTES, source.size_bytes))
        end_bytes = self._read_end_bytes()
        if matched and end_bytes > FOOTER_BYTES:
            self._cache_end(end_bytes)
        if spec.parquet.columns and spec.compression == "none":
            plan = layout.file_plan(spec, 0)
            if plan.groups_end + end_bytes == source.size_bytes:  # the file has the size of one that dlemu wrote
                self._plan = plan
                self._ends = range(plan.group_rows, plan.rows + plan.group_rows, plan.group_rows)
                return
        # `read_metadata` needs only the two ends of a file: the magic number, and the footer with its length
        both_ends = layout.MAGIC + bytes(self.source.read(source.size_bytes - end_bytes, end_bytes))
        self._metadata = pq.read_metadata(pa.BufferReader(both_ends))
        schema = self._metadata.schema
        self._columns = [schema.column(index) for index in range(len(schema))]
        paths = [column.path for column in self._columns]  # of a list: NAME.list.element
        requested = set(_requested_names(spec) or paths)
        in_file = [path if path in requested else path.split(".")[0] for path in paths]
        if missing := requested.difference(in_file):
            wanted = f"set dataset.parquet.columns to columns that it has: {', '.join(dict.fromkeys(in_file))}"
            raise UserError(f"{source.path} has no column {', '.join(sorted(missing))}; {wanted}")
        self._requested = [index for index, name in enumerate(in_file) if name in requested]
        self._rows = [self._metadata.row_group(index).num_rows for index in range(self._metadata.num_row_groups)]
        self._ends = list(itertools.accumulate(self._rows))

    def _cache_end(self, size_bytes: int) -> None:
        """Read the end of the file by one call, and keep it in memory."""
        start = self.source.size_bytes - size_bytes
        self.source = base.CachedSource(self.source, [(start, self.source.read(start, size_bytes))])

    def _read_end_bytes(self) -> int:
        """Return the size of the footer with its length and the magic number. Raises DamagedError."""
        size_bytes = self.source.size_bytes
        tail = bytes(self.source.read(max(size_bytes - TAIL_BYTES, 0), min(TAIL_BYTES, size_bytes)))
        end_bytes = int.from_bytes(tail[:4], "little") + TAIL_BYTES
        if tail[4:] != layout.MAGIC or len(layout.MAGIC) + end_bytes > size_bytes:
            raise base.DamagedError("no Parquet footer: the file is truncated or not Parquet", size_bytes)
        return end_bytes

    def groups_of(self, index: int, count: int) -> range:
        last = index + count - 1
        rows = self._plan.rows if self._plan else sum(self._rows)
        if last >= rows:
            raise base.no_such_record(last, rows)
        return range(bisect_right(self._ends, index), bisect_right(self._ends, last) + 1)

    def spans(self, group: int) -> list[Span]:
        if self._plan:
            planned, group_offset, _ = self._plan.place(group)
            if planned.rows not in self._planned_spans:
                self._planned_spans[planned.rows] = merge_spans(planned.spans, *self._merge_limits)
            return [(group_offset + offset, size) for offset, size in self._planned_spans[planned.rows]]
        chunks = []
        for _, chunk in self._requested_chunks(group):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset > 0:
                start = min(start, chunk.dictionary_page_offset)
            size = chunk.total_compressed_size
            if start < len(layout.MAGIC) or size < 0 or start + size > self.source.size_bytes:
                raise base.DamagedError(f"row group {group} has a column outside the file", start)
            chunks.append((start, size))
        return merge_spans(sorted(chunks), *self._merge_limits)

    def payload(self, group: int) -> list[tuple[int, int]]:
        plan = self._plan or self._matching_plan
        if plan is None:
            return []
        planned, _, payload_offset = plan.place(group)
        return [(size, payload_offset + offset) for size, offset in planned.payload]

    @functools.cached_property
    def _matching_plan(self) -> layout.FilePlan | None:
        """The uncompressed layout with the file's values; None if its schema or row groups differ from the settings."""
        columns = [(column.path, column.physical_type, column.length) for column in self._columns]
        plan = layout.file_plan(self._spec, max(self._columns[0].length if columns else 0, 1))
        has_same_rows = self._rows == [group.rows for group, _, _ in plan.groups]
        return plan if has_same_rows and columns == [column.in_schema for column in plan.columns] else None

    def largest_bytes(self) -> GroupBytes:
        groups = range(1 if self._plan else len(self._rows))
        stored = [sum(size + READ_SLACK_BYTES for _, size in self.spans(group)) for group in groups]
        decoded = stored if self._plan else map(self._decoded_bytes, groups)
        return GroupBytes.maximum(map(GroupBytes, stored, decoded))

    def _decoded_bytes(self, group: int) -> int:
        """Return the bytes of the requested values in memory, assuming no dictionary for values of variable length."""
        total = 0
        for index, chunk in self._requested_chunks(group):
            width = _WIDTHS.get(chunk.physical_type, self._columns[index].length)
            if not width:  # values of variable length, and their offsets
                total += chunk.total_uncompressed_size
            total += chunk.num_values * (width or _OFFSET_BYTES) + READ_SLACK_BYTES
        return total

    def _requested_chunks(self, group: int) -> list[tuple[int, Any]]:
        """Return (column index, metadata) of the requested column chunks."""
        row_group = self._metadata.row_group(group)
        return [(index, row_group.column(index)) for index in self._requested]


def _requested_names(spec: DatasetSpec) -> list[str] | None:
    """Return the names of the columns that training reads; None: all."""
    return [column.name for column in spec.parquet.columns if column.read] or None


def _buffers(chunk: Any) -> Iterator[memoryview]:
    """Yield the buffers of a column's values; of lists, the buffers of the numbers in them."""
    while isinstance(chunk.type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        chunk = chunk.flatten()
    try:
        width = chunk.type.bit_width // 8
    except ValueError:  # the type has no fixed width
        width = 0
    if width:
        data = memoryview(chunk.buffers()[-1] or b"").cast("B")
        yield data[chunk.offset * width : (chunk.offset + len(chunk)) * width]
    else:
        yield from (memoryview(buffer).cast("B") for buffer in chunk.buffers() if buffer is not None)
