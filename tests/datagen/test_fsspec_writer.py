"""A file written by fsspec is there as a whole, or not at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from datagen.storage import fsspec as backend
from datagen.storage.storage_base import StorageSpec, open_storage

fsspec = pytest.importorskip("fsspec")


@pytest.mark.parametrize("root", ["memory://writers", "file://{}"])
@pytest.mark.parametrize("before", [b"", b"whole"])
def test_a_file_that_is_discarded_leaves_the_one_before(root: str, before: bytes, tmp_path: Path) -> None:
    store, path = open_storage(StorageSpec(type="fsspec", root=root.format(tmp_path))), f"{len(before)}/a"
    store.make_folder(str(len(before)))
    for data, ends in ((before, "commit"), (b"another", "discard")):
        writer = store.create(path)
        writer.write(data)
        if data:
            getattr(writer, ends)()
        writer.discard()
    if not before:
        with pytest.raises(FileNotFoundError):
            store.size_bytes(path)
    else:
        assert store.open(path).size_bytes == len(before)
    assert [each.name for each in tmp_path.rglob(".*")] == []


def test_a_file_that_can_not_be_sent_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_storage(StorageSpec(type="fsspec", root="memory://refused"))
    writer = store.create("a")
    writer.write(b"data")

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("the quota is used up")

    monkeypatch.setattr(store.files, "pipe_file", refuse)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="RuntimeError: the quota is used up") as told:
        writer.commit()
    assert told.value.errno == errno.EIO
    monkeypatch.setattr(backend, "MAX_FILE_BYTES", 5)
    with pytest.raises(UserError, match=r"/a exceeds 0 GiB, the most .*wanted smaller files"):
        writer.write(b"more")
