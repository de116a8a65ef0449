"""Whatever lies under a name, opening it ends; only regular files are read, and no more of them than was wanted."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from datagen.regular import open_regular, read_regular
from datagen.storage.storage_base import FOLDERS, StorageSpec, open_storage, read_whole


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
