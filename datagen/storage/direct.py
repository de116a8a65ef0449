"""Folders whose files are read without the page cache (O_DIRECT); they are written as `posix` writes them."""

from __future__ import annotations

from dataclasses import replace

from datagen.storage import posix
from datagen.storage.storage_base import FOLDERS, StorageSpec


class Storage(posix.Storage):
    """Files opened with O_DIRECT, without `reader.odirect`."""

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        super().__init__(replace(spec, direct=True))
