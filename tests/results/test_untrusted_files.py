"""Files that somebody sent: what lies under their names is read whole, or told in one line with its path."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from datagen.errors import UserError
from dlemu.results.answer_files import decode_untrusted, open_untrusted, read_untrusted


class Kept(msgspec.Struct):
    """What a file may hold."""

    number: int
    word: str = ""


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    assert read_untrusted(str(path)) == b"x" * 100_000
    path.write_bytes(b"")
    assert read_untrusted(str(path)) == b""


def test_a_file_of_just_the_most_bytes_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    assert read_untrusted(str(path), 10) == bytes(10)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UserError, match=f"{path} can.t be read: it has 10 bytes, wanted at most 9"):
        read_untrusted(str(path), 9)
    assert len(os.listdir("/proc/self/fd")) == before, "nothing stays open"


def test_what_is_no_file_is_told_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros", "."):
        with pytest.raises(UserError, match=r"can.t be read: it is a (pipe|device|folder), wanted a regular file"):
            open_untrusted(str(tmp_path / name), 1 << 20)


def test_what_is_not_there_is_told_with_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{tmp_path}/gone can't be read: No such file or directory; name the folder"):
        open_untrusted(f"{tmp_path}/gone", 10)
    with pytest.raises(UserError, match=r"can't be read: embedded null byte; name the folder of a result"):
        open_untrusted(f"{tmp_path}/a\0b", 10)
    with pytest.raises(UserError, match=rf"^{tmp_path}/no is not a folder: name the folder of a result"):
        open_untrusted(f"{tmp_path}/no/summary.json", 10)


def test_json_is_decoded_to_its_type(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text('{"number": 3, "word": "ü", "of a later version": [1]}')
    assert decode_untrusted(str(path), Kept) == Kept(number=3, word="ü")
    for text in (b'{"number": "three"}', b"{}", b"[", b'{"number": 3, "word": "\xff"}', b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(UserError, match=rf"{path} is damaged \(.+\): it is not the JSON that dlemu wrote"):
            decode_untrusted(str(path), Kept)
