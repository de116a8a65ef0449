from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.storage import direct, memory, posix
from datagen.storage.storage_base import Storage

KEEPING = ["direct", "memory", "posix"]
DATA = bytes(range(256)) * 40


def storage(name: str) -> Storage:
    made: Storage = registry.find("datagen.storage", name, "Storage")()
    return made


@pytest.mark.parametrize("name", KEEPING)
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    backend, path = storage(name), str(tmp_path / "file")
    writer = backend.create(path)
    writer.skip(4)
    writer.write(DATA[4:100])
    writer.write(memoryview(DATA)[100:])
    writer.write_at(DATA[:4], 0)
    assert writer.position == len(DATA)
    writer.commit(fsync=True)
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


@pytest.mark.parametrize("name", KEEPING)
def test_a_missing_file_raises_the_systems_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        storage(name).open(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["direct", "posix"])
def test_a_file_has_its_name_only_after_commit(name: str, tmp_path: Path) -> None:
    writer = storage(name).create(str(tmp_path / "file"))
    writer.write(DATA)
    assert os.listdir(tmp_path) == [".file.part"]
    writer.discard()
    assert os.listdir(tmp_path) == []
    writer = storage(name).create(str(tmp_path / "file"))
    writer.commit(fsync=False)
    writer.discard()
    assert os.listdir(tmp_path) == ["file"]


def test_memory_is_made_by_commit_alone() -> None:
    backend = memory.Storage()
    backend.create("a").write(b"x")
    assert backend.files == {}


def test_null_touches_nothing() -> None:
    backend = storage("null")
    assert backend.reads_nothing
    reader = backend.open("/no/such/file")
    assert reader.read_into(memoryview(bytearray(8)), 0) == 0
    writer = backend.create("/no/such/file")
    writer.write(b"abc")
    writer.commit(fsync=True)
    assert writer.position == 3


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_short_reads_are_continued(sizes: list[int]) -> None:
    """The kernel may return less than asked at any time; a read goes on until it is full or at the end."""
    remaining = iter(sizes)

    def short(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = min(next(remaining, 1 << 20), len(buffers[0]), len(DATA) - offset)
        buffers[0][:count] = DATA[offset : offset + count]
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", short)
        reader = posix.FileReader(os.open(os.devnull, os.O_RDONLY))
        reader.size_bytes = len(DATA)
        buffer = memoryview(bytearray(len(DATA) + 10))
        assert reader.read_into(buffer, 0) == len(DATA)
        assert bytes(buffer[: len(DATA)]) == DATA
        reader.close()


@pytest.mark.parametrize("name", ["direct", "posix"])
def test_a_file_that_shrinks_ends_the_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    reader = storage(name).open(str(path))
    os.truncate(path, 10)
    assert reader.read_into(AlignedBuffer().view(12288), 0) == 10
    reader.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file system that refuses O_DIRECT: /proc")
def test_a_file_system_without_o_direct_is_named() -> None:
    with pytest.raises(UserError, match=r"/proc/self refuses O_DIRECT: set reader\.odirect=false"):
        direct.Storage().open("/proc/self/status")


def test_a_buffer_grows_and_is_used_again() -> None:
    buffer = AlignedBuffer(100)
    first = buffer.view(100)
    first[0] = 7
    assert buffer.view(4096)[0] == 7
    large = buffer.view(20 << 20)
    assert large[0] == 0
    assert first[0] == 7
    large[-1] = 3
    assert buffer.view(20 << 20)[-1] == 3
    assert len(buffer.view(0)) == 0
