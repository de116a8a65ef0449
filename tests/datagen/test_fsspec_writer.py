"""What is left of a file that was not written to its end, in stores of several kinds of fsspec's: nothing."""

from __future__ import annotations

import gc
import io
import itertools
from pathlib import Path
from typing import Any, ClassVar

import pytest

from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage

fsspec = pytest.importorskip("fsspec")
LARGE = bytes(9 << 20)
"""More than what a writer, and fsspec's files, keep in memory."""


class Store(fsspec.AbstractFileSystem):  # type: ignore[name-defined, misc]  # fsspec has no types
    """A store of objects as clouds have them: a file is there once it is closed."""

    protocol = "kept"
    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **words: Any) -> Any:
        return File(self, path, mode, **words)

    def info(self, path: str, **words: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.objects[path]), "type": "file", "id": id(self.objects[path])}

    def rm_file(self, path: str) -> None:
        del self.objects[self._strip_protocol(path)]


class File(fsspec.spec.AbstractBufferedFile):  # type: ignore[name-defined, misc]
    """Inherits a `discard` that does nothing, and a destructor that closes."""

    def _initiate_upload(self) -> None:
        self.sent = b""

    def _upload_chunk(self, final: bool = False) -> bool:
        self.sent += self.buffer.getvalue()
        if final:
            self.fs.objects[self.path] = self.sent
        return True


class GrowingStore(Store):
    """A store in which a file is there from its first bytes on."""

    protocol = "growing"
    objects: ClassVar[dict[str, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **words: Any) -> Any:
        return GrowingFile(self, path, mode, **words)


class GrowingFile(File):
    def _upload_chunk(self, final: bool = False) -> bool:
        super()._upload_chunk(final)
        self.fs.objects[self.path] = self.sent
        return True


class PlainStore(Store):
    """One whose files are none of fsspec's."""

    protocol = "plain"
    objects: ClassVar[dict[str, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **words: Any) -> Any:
        store = self.objects

        class Plain(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    store[path] = self.getvalue()
                super().close()

        return Plain()


@pytest.fixture(params=["kept", "growing", "plain", "memory"])
def store(request: pytest.FixtureRequest) -> StorageBase:
    for kind in (Store, GrowingStore, PlainStore):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
        kind.objects.clear()
    return open_storage(StorageSpec(type="fsspec", root=f"{request.param}://bucket-{next(_numbers)}"))


_numbers = itertools.count()


@pytest.mark.parametrize("size", [5, len(LARGE)])
def test_a_file_that_is_discarded_is_not_there(store: StorageBase, size: int) -> None:
    writer = store.create("folder/a")
    writer.write(LARGE[:size])
    writer.discard()
    writer.discard()
    del writer
    gc.collect()
    with pytest.raises(FileNotFoundError):
        store.size_bytes("folder/a")


def test_a_file_of_somebody_elses_stays_whole_or_goes() -> None:
    for kind in (Store, GrowingStore, PlainStore):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
        kind.objects |= {"bucket/folder/a": b"whole", "bucket/folder/.b.part": b"of others"}
        store = open_storage(StorageSpec(type="fsspec", root=f"{kind.protocol}://bucket"))
        writer = store.create("folder/a")
        writer.write(LARGE)
        writer.discard()
        del writer
        gc.collect()
        assert kind.objects.get("bucket/folder/a") == (b"whole" if kind is Store else None)
        store.remove_unfinished("folder")
        assert kind.objects["bucket/folder/.b.part"] == b"of others"


def test_a_local_file_that_is_discarded_leaves_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"whole")
    writer = open_storage(StorageSpec(type="fsspec", root=f"file://{tmp_path}")).create("a")
    writer.write(LARGE)
    writer.discard()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"whole"}
