"""Writes and reads files in memory, for tests of single formats."""

from __future__ import annotations

import itertools
from typing import Any

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.formats.format_base import FileJob, FormatBase, RecordFormat, RecordInputs, SideFile, Source
from datagen.spec import DatasetSpec
from datagen.storage import memory
from tests.datasets import format_named

FILE = 7
"""Running index of the file that `written` writes."""
CONTENT = Content(1)


class MemorySource(Source):
    _made = itertools.count()

    def __init__(self, data: bytes, path: str = "") -> None:
        # Each file has a path of its own, because offsets are cached by path.
        super().__init__(path or f"{next(self._made)}/file.dat", memory.MemoryReader(memoryview(data)))


def records_of(file_format: RecordFormat, data: bytes, count: int) -> list[bytes]:
    source = MemorySource(data)
    file = RecordInputs(source, count, lambda _number: None)
    opened = file_format.open_records(file._replace(offsets=file_format.locate(file)))
    records = []
    for index in range(count):
        record = source.read(*opened.span(index, 1))
        ((start, size),) = opened.samples(index, 1, record, False)
        records.append(bytes(record[start : start + size]))
    return records


def job(name: str, shape: tuple[int, ...], **settings: Any) -> FileJob:
    spec = DatasetSpec(format=name, **settings)
    assert spec.check() == []
    return FileJob(spec, Content(1, spec.compressibility), FILE, shape)


def written(file_format: FormatBase | SideFile, file_job: FileJob) -> bytes:
    storage = memory.Storage()
    writer = storage.create("x")
    file_format.write(file_job, writer, AlignedBuffer())
    writer.commit()
    return storage.files["x"]


def payload(start: int, stop: int, content: Content = CONTENT) -> bytes:
    """Return the content that `written` writes to the samples of a job."""
    out = bytearray(stop)
    content.fill(memoryview(out), FILE, 0)
    return bytes(out[start:])


def expected(file_job: FileJob) -> bytes:
    return payload(0, file_job.payload_bytes, file_job.content)


def record_file(spec: DatasetSpec, shape: tuple[int, int], side: int | None = None) -> bytes:
    """Return the bytes of a file of records, or of one of its side files."""
    file_format = format_named(spec.format)
    return written(file_format if side is None else file_format.sides[side], FileJob(spec, CONTENT, FILE, shape))
