"""The files of `indexed_binary`, read through memory maps (DLIO's `mmap_indexed_binary`).

Data is read by page faults and the kernel's read-ahead. With direct I/O (`reader.odirect`) and in object stores, files
can't be mapped and are read as `indexed_binary`.
"""

from __future__ import annotations

import numpy as np

from datagen.formats import indexed_binary
from datagen.formats.format_base import LibraryReads, Sample, damaged

LIBRARY = LibraryReads(call="np.memmap", in_parts=True)


class Format(indexed_binary.Format):
    """Reads and writes FILE, FILE.off.idx and FILE.sz.idx."""

    mapped = True

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read the whole index, then copy the record from an np.memmap."""
        offset, size = indexed_binary.entry(path, indexed_binary.indexes_of(path, samples), index, samples)
        try:
            record = np.array(np.memmap(path, np.uint8, "r")[offset : offset + size])
        except ValueError as error:  # an empty file can't be mapped
            raise damaged(path, f"it can't be mapped ({error})", 0) from error
        if record.size != size:
            raise damaged(path, f"the file ends within record {index}", offset + record.size)
        return Sample(record.data, record.data, offset)
