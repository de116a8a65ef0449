"""The files of `indexed_binary`, read through memory maps (DLIO's `mmap_indexed_binary`).

Data is read by page faults and the kernel's read-ahead. With direct I/O (`reader.odirect`) and in object stores, files
can't be mapped and are read as `indexed_binary`.
"""

from __future__ import annotations

import numpy as np

from datagen.formats import indexed_binary
from datagen.formats.format_base import AnyFile, Indexes, LibraryReads, Sample, damaged
from datagen.storage.storage_base import LibraryFile

LIBRARY = LibraryReads(call="np.memmap", in_parts=True)


class Format(indexed_binary.Format):
    """Reads and writes FILE, FILE.off.idx and FILE.sz.idx."""

    mapped = True

    def load(self, file: AnyFile, index: int, samples: int, indexes: Indexes) -> Sample:
        """Read the whole index, then copy the record from an np.memmap."""
        if isinstance(file, LibraryFile):
            return super().load(file, index, samples, indexes)
        offset, size = indexed_binary.entry(file.name, index, samples, indexes)
        try:
            record = np.array(np.memmap(file.name, np.uint8, "r")[offset : offset + size])
        except ValueError as error:  # an empty file can't be mapped
            raise damaged(file.name, f"it can't be mapped ({error})", 0) from error
        return indexed_binary.loaded(file.name, record.data, index, offset, size)
