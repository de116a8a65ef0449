"""Files of this host: what has its name is whole, only regular ones are opened, and a look leaves the page cache."""

from __future__ import annotations

import errno
import io
import os
import socket
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from datagen.atomic import write_file, write_text
from datagen.errors import SpaceError
from datagen.inspection import inspect
from datagen.own_folder import inspect_own_folder
from datagen.regular import open_regular, read_regular
from datagen.spec import DatasetSpec
from datagen.storage.posix import _is_cached, cache_restored
from datagen.storage.storage_base import FOLDERS, StorageSpec, open_storage, read_whole


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the quota is used up")]
)
def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new(number: int, said: str, tmp_path: Path) -> None:
    write_text(str(tmp_path / "run"), "dlio/summary.json", "old")  # with the folders that it needs
    fail = Mock(side_effect=OSError(number, os.strerror(number)))
    with pytest.raises(SpaceError, match=rf"{said}: .*summary.json could not be written; .*, or move house"):
        write_file(str(tmp_path / "run"), "dlio/summary.json", fail, advice="move house")
    assert os.listdir(tmp_path / "run/dlio") == ["summary.json"]
    assert (tmp_path / "run/dlio/summary.json").read_text() == "old"


@pytest.mark.parametrize("target", ["/dev/null", "page.html"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "page.html").symlink_to(target)  # as /dev/stdout leads to a terminal, and one that leads to itself
    said = "it is a device, wanted a regular file" if target[0] == "/" else "Too many levels of symbolic links"
    with pytest.raises(SpaceError, match=rf"page\.html could not be written: {said}; write to another folder"):
        write_text(str(tmp_path), "page.html", "<p>")
    assert os.listdir(tmp_path) == ["page.html"]
    assert os.readlink(tmp_path / "page.html") == target


def test_what_a_killed_writer_left_of_a_file_goes_when_it_is_written_again(tmp_path: Path) -> None:
    process = os.fork()
    if process == 0:
        write_file(str(tmp_path), "report.html", lambda out: (out.write(b"half"), out.flush(), os._exit(0)))
    os.waitpid(process, 0)
    assert len(os.listdir(tmp_path)) == 1, "under its temporary name"
    (tmp_path / "report.html.part").write_text("of somebody else")
    write_text(str(tmp_path), "report.html", "whole")
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.html.part"]


def make(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_what_is_no_regular_file_is_named(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    make(kind, Path("odd"))
    before = len(os.listdir("/proc/self/fd"))
    for read in (open_regular, read_regular):
        with pytest.raises(OSError, match=rf"it is a {kind}, wanted a regular file: 'odd'") as raised:
            read("odd")
        assert raised.value.errno == errno.ENODEV
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(OSError, match=f"it is a {kind}"):
        read_whole(open_storage(FOLDERS), "odd")


@pytest.mark.parametrize("spec", [FOLDERS, StorageSpec(direct=True)])
def test_a_file_is_read_up_to_a_bound_and_a_link_to_one_too(tmp_path: Path, spec: StorageSpec) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"x" * 10)
    link.symlink_to(path)
    for name in (str(path), str(link)):
        assert read_regular(name, 10) == b"x" * 10
        with pytest.raises(OSError, match="it has 10 bytes, wanted at most 9"):
            read_regular(name, 9)
        assert bytes(read_whole(open_storage(spec), name, 10)) == b"x" * 10
        with pytest.raises(OSError, match="it has 10 bytes, wanted at most 9"):
            read_whole(open_storage(spec), name, 9)


def shard(path: Path) -> None:
    """Make samples of several sizes: only their headers say where they begin."""
    with tarfile.open(path, "w") as tar:
        for number in range(40):
            member = tarfile.TarInfo(f"{number:06}.npy")
            member.size = 100_000 + 512 * number
            tar.addfile(member, io.BytesIO(bytes(member.size)))


def cached_bytes_after_a_look(path: Path) -> bool:
    spec = inspect_own_folder(DatasetSpec(data_folder=str(path.parent), source="folder", format=""), FOLDERS).spec
    inspect(spec)
    return _is_cached(str(path))


def test_looking_leaves_a_cold_file_cold_and_a_cached_one_cached(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    shard(path)
    assert cached_bytes_after_a_look(path), "it was just written"
    open_storage(FOLDERS).evict(str(path), write_first=True)
    if _is_cached(str(path)):
        pytest.skip(f"{path} lies on a file system whose pages can't be dropped")
    assert not cached_bytes_after_a_look(path)
    with cache_restored([str(path)]):
        path.read_bytes()
    assert not _is_cached(str(path))
    path.read_bytes()
    with cache_restored([str(path), str(tmp_path / "gone")]):
        path.read_bytes()
    assert _is_cached(str(path))
