"""Backend that reads local files with O_DIRECT, past the page cache, and writes them as `posix` does."""

from __future__ import annotations

from dataclasses import replace

from datagen.storage import posix
from datagen.storage.storage_base import FOLDERS, StorageSpec


class Storage(posix.Storage):
    """Files opened with O_DIRECT, whatever `reader.odirect` says."""

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        super().__init__(replace(spec, direct=True))
