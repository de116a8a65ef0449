"""A storage whose files have no local path, as a server of objects."""

from __future__ import annotations

from datagen.storage import posix


class Storage(posix.Storage):
    reads_directly = False

    def free_bytes(self, folder: str) -> int | None:
        return None

    def local_path(self, path: str) -> str | None:  # type: ignore[override]  # a folder has one, a bucket has none
        return None
