"""Parquet: fixed-width columns in row groups; training reads whole row groups, of the columns asked for.

What is written is laid out by `_parquet_layout`, so an uncompressed file's bytes do not depend on a library's version.
`_parquet_write` and `_parquet_read` are the two halves.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats._parquet_arrow import RowsFile, Stream, decoded
from datagen.formats._parquet_layout import plan_of
from datagen.formats._parquet_meta import COMPRESSIONS
from datagen.formats._parquet_read import GroupsFile, packed_bytes, room_bytes
from datagen.formats._parquet_write import write_packed, write_plain
from datagen.formats._records import sample_bytes
from datagen.formats.format_base import FileJob, Sample, Source
from datagen.groups import GroupBytes
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

_KNOWN = f"{', '.join(COMPRESSIONS[:-1])} and {COMPRESSIONS[-1]}"


class Format:
    """Reads and writes Parquet."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = []
        if spec.compression not in COMPRESSIONS:
            problems.append(f"dataset.compression is {spec.compression}: format parquet knows {_KNOWN}")
        if spec.record_length_bytes_resize:
            wanted = "wanted 0, for whole row groups are shipped"
            problems.append(f"dataset.record_length_bytes_resize is {spec.record_length_bytes_resize}: {wanted}")
        if spec.parquet.row_group_size < 1:
            problems.append(f"dataset.parquet.row_group_size is {spec.parquet.row_group_size}: wanted 1 or more")
        columns = spec.parquet.columns
        problems += [
            f"dataset.parquet.columns: {one.name} has size {one.size}: wanted 1 or more"
            for one in columns
            if one.size < 1
        ]
        if len({one.name for one in columns}) != len(columns):
            problems.append("dataset.parquet.columns: two columns have one name")
        if columns and not any(one.read for one in columns):
            problems.append("dataset.parquet.columns: none has read: true, so there is nothing to train on")
        return problems

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if spec.compression != "none":
            return None
        if spec.parquet.columns:
            return np.full(len(shapes), plan_of(spec, 0).size_bytes, np.int64)
        unique, places = np.unique(sample_bytes(spec, shapes), return_inverse=True)
        sizes = [plan_of(spec, size).size_bytes for size in unique.tolist()]
        return np.array(sizes, np.int64)[places]

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        plan = plan_of(job.spec, job.record_bytes)
        (write_plain if job.spec.compression == "none" else write_packed)(job, plan, writer, buffer)

    def open(self, source: Source, samples: int) -> RowsFile:
        data = source.read(0, source.size_bytes)
        return RowsFile(source.path, pa.py_buffer(data))

    def load(self, path: str, index: int, samples: int) -> Sample:
        return RowsFile(path, path).sample(index)

    def group_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> GroupBytes:
        """Return the most memory that a row group takes."""
        sizes = [0] if spec.parquet.columns else np.unique(sample_bytes(spec, shapes)).tolist()
        groups = [plan_of(spec, size).group(0) for size in sizes]
        plain = max(room_bytes(group.spans) for group in groups)
        return GroupBytes(plain if spec.compression == "none" else max(map(packed_bytes, groups)), plain)

    def open_groups(self, source: Source, spec: DatasetSpec) -> GroupsFile:
        """Make a file ready for reading row groups.

        Raises:
            DatasetError: it is no Parquet file.
        """
        return GroupsFile(source, spec)

    def decode_group(self, source: Source, index: int, spec: DatasetSpec) -> list[memoryview]:
        """Read the columns asked for of one row group by pyarrow, through the storage."""
        return decoded(source.path, pa.PythonFile(Stream(source), mode="r"), index, spec)

    def load_group(self, path: str, index: int, spec: DatasetSpec) -> list[memoryview]:
        return decoded(path, path, index, spec)
