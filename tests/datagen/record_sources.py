"""Files in memory for tests of the record formats."""

from __future__ import annotations

import numpy as np

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.formats.format_base import FileJob, RecordFormat
from datagen.spec import DatasetSpec
from datagen.storage import memory


def record_format(name: str) -> RecordFormat:
    found: RecordFormat = registry.find("datagen.formats", name, "Format")()
    return found


def written(spec: DatasetSpec, shape: tuple[int, int], side: int | None = None) -> bytes:
    """Return the bytes of a data file, or of one of its side files."""
    made = record_format(spec.format)
    storage = memory.Storage()
    writer = storage.create("x")
    job = FileJob(spec, Content(1), 7, shape)
    (made if side is None else made.sides[side]).write(job, writer, AlignedBuffer())
    writer.commit()
    return storage.files["x"]


def payload(start: int, stop: int, file: int = 7) -> bytes:
    """Return what `written` puts into its samples."""
    out = np.empty(stop, np.uint8)
    Content(1).fill(out, file, 0)
    return out[start:].tobytes()
