"""The files of `indexed_binary`, read through memory maps (DLIO's `mmap_indexed_binary`).

Data is read by page faults and the kernel's read-ahead. With direct I/O (`reader.odirect`) and in object stores, files
can't be mapped and are read as `indexed_binary`.
"""

from __future__ import annotations

import numpy as np

from datagen.formats import indexed_binary


class Format(indexed_binary.Format):
    mapped = True

    def load_record(self, path: str, offset: int, size: int) -> memoryview:
        """Copy the record from an np.memmap."""
        return np.array(np.memmap(path, np.uint8, "r")[offset : offset + size]).data
