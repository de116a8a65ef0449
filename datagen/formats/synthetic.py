"""Files that are never read: samples are created in memory, to measure loaders without storage (DLIO's `synthetic`).

Each file holds its running index as text, as DLIO's do; like any dataset, the files must exist when a run starts.
"""

from __future__ import annotations

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.formats.format_base import FileJob, Sizes, UnreadFormat
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer


class Format(UnreadFormat):
    """Writes the running index into each file, and never reads one."""

    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> None:
        """Return None: a file's size depends on its running index (`unread_bytes`), not on its shape."""

    def unread_bytes(self, files: int) -> Sizes:
        return np.array([len(str(number)) for number in range(files)], np.int64)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        writer.write(str(job.running_index).encode())
