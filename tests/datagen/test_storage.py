"""Every file of `datagen/storage` keeps the promises of `StorageBase`, and each what it promises alone."""

from __future__ import annotations

import ast
import contextlib
import errno
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.formats.format_base import Source, SourceStream
from datagen.storage import fsspec, posix
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage, read_whole, storage_spec

ALL = [*registry.names("datagen.storage"), "direct"]
SERVED = {
    "fsspec": StorageSpec(type="fsspec", root="file:///"),
    "fsspec in memory": StorageSpec(type="fsspec", root="memory://tests"),
    "direct": StorageSpec(direct=True),
}
KEEPING = [name for name in ALL if name != "null"]
FOLDERS = ["direct", "fsspec", "posix"]
DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _served(request: pytest.FixtureRequest) -> None:
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("name") == "s3":
        SERVED["s3"] = request.getfixturevalue("s3").spec()


def storage(name: str) -> StorageBase:
    return open_storage(SERVED.get(name, StorageSpec(type=name)))


def write(backend: StorageBase, path: str, data: bytes = DATA) -> None:
    writer = backend.create(path)
    writer.write(data)
    writer.commit()


def names_in(backend: StorageBase, folder: str) -> dict[str, bool]:
    with backend.entries(folder) as entries:
        return {entry.name: entry.is_dir() for entry in entries}


@pytest.mark.parametrize("name", KEEPING)
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    backend, path = storage(name), str(tmp_path / "file")
    writer = backend.create(path)
    writer.skip(4)
    writer.write(DATA[4:100])
    writer.write(memoryview(DATA)[100:])
    writer.write_at(DATA[:4], 0)
    assert writer.position == len(DATA)
    writer.sync()
    writer.commit()
    writer.discard()
    reader = backend.open(path)
    buffer = AlignedBuffer().view(16384)
    assert reader.size_bytes == len(DATA)
    assert reader.read_into(buffer, 0) == len(DATA)
    assert bytes(buffer[: len(DATA)]) == DATA
    assert reader.app_bytes == len(DATA)
    assert reader.read_calls == 1
    assert reader.read_into(buffer[:4096], 8192) == len(DATA) - 8192
    assert bytes(buffer[: len(DATA) - 8192]) == DATA[8192:]
    assert reader.read_calls == 2
    reader.close()
    assert bytes(read_whole(backend, path)) == DATA


@pytest.mark.parametrize("most", [1, 7, 4095, len(DATA) - 1])
def test_short_reads_and_writes_are_continued(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may move fewer bytes than requested at any time, as when a signal comes."""
    preadv, pwrite, backend, path = os.preadv, os.pwrite, posix.Storage(), str(tmp_path / "file")
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: preadv(file, [buffers[0][:most]], at))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:most], at))
    write(backend, path)
    assert Path(path).read_bytes() == DATA
    reader, buffer = backend.open(path), memoryview(bytearray(len(DATA) + 10))
    assert reader.read_into(buffer, 0) == len(DATA)
    assert bytes(buffer[: len(DATA)]) == DATA
    assert reader.read_stretches([(5000, 5000), (0, 100)], buffer) == 5100
    assert bytes(buffer[:5100]) == DATA[5000:10000] + DATA[:100]
    reader.close()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_file_that_shrinks_ends_the_read(name: str, tmp_path: Path) -> None:
    backend, path = storage(name), str(tmp_path / "file")
    write(backend, path)
    reader = backend.open(path)
    os.truncate(path, 10)
    assert reader.read_into(AlignedBuffer().view(12288), 0) == 10
    reader.close()


@pytest.mark.parametrize("name", [*KEEPING, "fsspec in memory"])
def test_a_file_has_its_name_only_after_commit(name: str, tmp_path: Path) -> None:
    backend, path = storage(name), str(tmp_path / "file")
    backend.make_folder(str(tmp_path))
    writer = backend.create(path)
    writer.write(b"never")
    writer.discard()
    with pytest.raises(FileNotFoundError):
        backend.size_bytes(path)
    write(backend, path, b"old")
    writer = backend.create(path)
    writer.write(b"new")
    assert bytes(read_whole(backend, path)) == b"old"
    writer.discard()
    assert names_in(backend, str(tmp_path)) == {"file": False}
    writer = backend.create(path)
    writer.write(b"new")
    writer.commit()
    assert bytes(read_whole(backend, path)) == b"new"


@pytest.mark.parametrize("name", KEEPING)
def test_an_interrupted_writer_leaves_nothing_that_is_not_removed(name: str, tmp_path: Path) -> None:
    backend = storage(name)
    backend.make_folder(str(tmp_path))
    write(backend, str(tmp_path / "whole"))
    forked = os.fork() if name in FOLDERS else 0  # there a writer that lives keeps its file
    if not forked:
        backend.create(str(tmp_path / "part")).write(b"x")
        if name in FOLDERS:
            os._exit(0)
    else:
        os.waitpid(forked, 0)
    assert [seen for seen in names_in(backend, str(tmp_path)) if not seen.startswith(".")] == ["whole"]
    backend.remove_unfinished(str(tmp_path))
    assert names_in(backend, str(tmp_path)) == {"whole": False}


@pytest.mark.parametrize("name", [*KEEPING, "fsspec in memory"])
def test_folders_are_made_and_listed(name: str, tmp_path: Path) -> None:
    backend, folder = storage(name), str(tmp_path / "a" / "b")
    assert not backend.is_folder(folder)
    with pytest.raises(FileNotFoundError), backend.entries(folder):
        pass
    backend.make_folder(folder)
    backend.make_folder(folder)
    write(backend, f"{folder}/file")
    assert backend.is_folder(folder)
    assert not backend.is_folder(f"{folder}/file")
    assert names_in(backend, str(tmp_path / "a")) == {"b": True}
    assert names_in(backend, folder) == {"file": False}
    backend.sync(folder)


@pytest.mark.parametrize("name", KEEPING)
def test_sizes_and_removal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, path, none = storage(name), str(tmp_path / "file"), str(tmp_path / "none")
    write(backend, path)
    assert backend.size_bytes(path) == len(DATA)
    assert list(backend.sizes([none, path])) == [None, len(DATA)]
    monkeypatch.setattr(os, "posix_fadvise", advise := Mock())
    backend.evict(path, write_first=True)
    assert advise.called == (name in FOLDERS)
    backend.remove(path)
    for failing in (backend.size_bytes, backend.remove, backend.open):
        with pytest.raises(FileNotFoundError):
            failing(path)


@pytest.mark.parametrize("name", KEEPING)
def test_free_space_and_kind_of_memory_are_known_or_not(name: str, tmp_path: Path) -> None:
    backend = storage(name)
    state = os.statvfs(tmp_path)
    of_disk = isinstance(backend, posix.Storage)
    for folder in (tmp_path, tmp_path / "to" / "be" / "made"):
        free = backend.free_bytes(str(folder))
        assert (free is not None) == of_disk
        assert free is None or abs(free - state.f_bavail * state.f_frsize) < 0.1 * state.f_blocks * state.f_frsize
    assert backend.memory_kind("/dev/shm") == ("tmpfs" if name in FOLDERS else "memory" if name == "memory" else "")


@pytest.mark.parametrize("name", ALL)
def test_only_folders_are_read_past_the_page_cache(name: str) -> None:
    spec = replace(SERVED.get(name, StorageSpec(type=name)), direct=True)
    if name in ("posix", "direct"):
        assert open_storage(spec).alignment == posix.DIRECT_ALIGNMENT
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert open_storage(StorageSpec(type="posix", direct=True).buffered).alignment == 1
    else:
        with pytest.raises(UserError, match=f"storage {name} has no page cache to read past"):
            open_storage(spec)


def test_what_fsspec_can_not_do_with_an_object_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = storage("fsspec in memory").create("a")
    writer.write(b"data")
    refuse = Mock(side_effect=RuntimeError("the quota is used up"))
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", refuse)
    with pytest.raises(OSError, match="RuntimeError: the quota is used up") as caught:
        writer.commit()
    assert caught.value.errno == errno.EIO
    monkeypatch.setattr(fsspec, "MAX_FILE_BYTES", 5)
    with pytest.raises(UserError, match=r"/a exceeds 0 GiB, the limit .*wanted smaller files"):
        writer.write(b"more")
    unknown = Mock(return_value={"type": "file", "size": None})
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.info", unknown)
    with pytest.raises(OSError, match="does not state the size"):
        storage("fsspec in memory").open("a")


@pytest.mark.parametrize("name", ["memory", "posix"])
def test_libraries_read_a_file_of_any_storage(name: str, tmp_path: Path) -> None:
    backend, path = storage(name), str(tmp_path / "array.npy")
    data = io.BytesIO()
    np.save(data, np.arange(1000))
    write(backend, path, data.getvalue())
    with contextlib.closing(Source(path, backend.open(path))) as source:
        file = SourceStream(source)
        assert np.load(file).tolist() == list(range(1000))
        assert file.seek(-8, io.SEEK_END) == len(data.getvalue()) - 8
        assert int.from_bytes(file.readall(), "little") == 999
        assert file.read(1) == b""
        with pytest.raises(ValueError, match="seek"):
            file.seek(-1)
        assert source.reader.app_bytes >= 8000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("local", r"did you mean local_fs\?"),
        ("null", "that is for dlemu's own use;"),
        ("memory", "that is for dlemu's own use;"),
    ],
)
def test_a_name_that_is_none_is_answered_with_those_there_are(wrong: str, said: str) -> None:
    with pytest.raises(UserError, match=f"is '{wrong}': {said} wanted one of direct, direct_fs, fsspec, local_fs, par"):
        storage_spec(StorageSpec(type=wrong))


def test_a_url_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="'s3://bucket/data', a URL"):
        posix.Storage().make_folder("s3://bucket/data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file system that refuses O_DIRECT: /proc")
@pytest.mark.parametrize(("section", "writes"), [("reader", False), ("checkpoint", True)])
def test_a_file_system_without_o_direct_is_named(section: str, writes: bool) -> None:
    with pytest.raises(UserError, match=rf"/proc/self refuses O_DIRECT: set {section}\.odirect=false"):
        posix.Storage(StorageSpec(direct=True, direct_writes=writes)).open("/proc/self/status")


NO_DATA = {"atomic.py", "owned.py", "regular.py", "engines.py", "formats/format_base.py"}
"""Modules outside of `storage/` that ask the system, none of them for data: results, whose a folder is, no files, the
kernel's accounting in /proc, whether a file is still the one that is known."""


def test_only_storages_touch_files() -> None:
    """Formats may open a path by the library call of `reader.engine=library`, in `load`; all else asks the storage."""
    root = Path(posix.__file__).parent.parent
    for path in root.rglob("*.py"):
        name, tree = str(path.relative_to(root)), ast.parse(path.read_text())
        loads = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "load"]
        allowed = {id(node) for load in loads for node in ast.walk(load)}
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in allowed)
        for called in map(ast.unparse, (node.func for node in calls)):
            asks = called == "open" or (called.startswith("os.") and not called.startswith(("os.path.", "os.strerror")))
            assert not asks or name in NO_DATA or name.startswith("storage/"), f"{name} calls {called}"
