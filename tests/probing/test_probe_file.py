"""The file that a probe makes: nobody else's is touched, what a killed probe left goes, odd targets are named."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.jobs.probe.probe_file import probe_file
from dlemu.jobs.probe.requests import measure_cell, open_target
from dlemu.jobs.probe.result import CellSpec
from dlemu.jobs.probe.run import probe_target

MIB = 1 << 20
READ = CellSpec(access="randread", size_bytes=4096, depth=1, jobs=1)
HOLDS = """
import sys
from dlemu.jobs.probe.probe_file import probe_file
with probe_file(sys.argv[1], 5000) as path:
    print(path, flush=True)
    input()
"""


def test_what_a_killed_probe_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", HOLDS, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as probe:
        assert probe.stdout is not None
        path = Path(probe.stdout.readline().strip())
        others = [path.with_name(path.name.replace("probe-", "probe-0")), tmp_path / f"{path.name}.txt"]
        for other in others:
            other.write_bytes(b"of another host, or the user's")
        with probe_file(str(tmp_path), 5000):
            assert path.stat().st_size == 5000, "a probe that lives keeps its file"
        probe.send_signal(signal.SIGKILL)
    with probe_file(str(tmp_path), 5000):
        assert not path.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("kind", ["/dev/null", "pipe", "loop", "gone"])
def test_an_odd_target_is_named(tmp_path: Path, kind: str) -> None:
    target = kind if kind.startswith("/") else str(tmp_path / kind)
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "loop":
        os.symlink(target, target)
    with pytest.raises(
        UserError, match=rf"{target} (is a|does not exist).*wanted a folder of the storage, or a file to read"
    ):
        probe_target(target, folder=str(tmp_path / "out"), seconds=0.1, depths=(1,))


def test_what_is_written_to_is_no_link(tmp_path: Path) -> None:
    users, planted = tmp_path / "mine", tmp_path / "planted"
    users.write_bytes(b"mine")
    planted.symlink_to(users)
    with pytest.raises(DlemuError, match="planted can't be opened"):
        open_target(str(planted), writes=True)
    os.close(open_target(str(planted), writes=False, flags=0))


FIO = """#!{python}
import os, sys
name = next(word.partition("=")[2] for word in sys.argv if word.startswith("--filename="))
odd = set(name) & set(":#;\\\\ ")
sys.exit(f"inode {{os.stat(name).st_ino}} of {{name}}" + (" by a name to be parsed" if odd else ""))
"""


@pytest.mark.parametrize("name", ["a:b", "a\\:b", "a#b;c", " a ", "plain"])
def test_fio_gets_the_file_itself_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """fio splits names at colons, and takes what follows a # or ; for a comment: it would make another file."""
    (tmp_path / "fio").write_text(FIO.format(python=sys.executable))
    (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / name
    path.write_bytes(bytes(MIB))
    with pytest.raises(DlemuError) as raised:
        measure_cell(READ, str(path), MIB, 0.1, "fio")
    assert f"inode {path.stat().st_ino} of {path}".rstrip() in str(raised.value)
    assert "to be parsed" not in str(raised.value)
    assert os.listdir(folder) == [name]


def test_a_file_system_that_can_only_be_read_is_a_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one that is mounted read-only, removing a name that is not there fails with EROFS too, not ENOENT."""

    def refuse(*words: object, **more: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    with (
        pytest.raises(SpaceError, match="can't be written: Read-only file system; name another folder"),
        probe_file(str(tmp_path), 5000),
    ):
        pass


def test_the_file_is_gone_if_ctrl_c_comes_while_it_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.open

    def interrupted(path: str, flags: int, mode: int = 0o777) -> int:
        os.close(create(path, flags, mode))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt), probe_file(str(tmp_path), 5000):
            pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failure", [None, UserError("full"), DlemuError("reading failed"), KeyboardInterrupt()])
def test_a_file_that_a_failing_disk_keeps_is_named(
    failure: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    said = "" if failure is None else f"{failure}\n"
    probe = probe_file(str(tmp_path), 5000)
    path = probe.__enter__()
    monkeypatch.setattr(os, "unlink", fail)
    if isinstance(failure, KeyboardInterrupt):
        assert not probe.__exit__(type(failure), failure, None), "it goes on"
        return
    with pytest.raises(DlemuError) as raised:
        probe.__exit__(type(failure) if failure else None, failure, None)
    assert raised.type is (UserError if failure is None else type(failure)), "the exit status is the failure's"
    assert str(raised.value).startswith(f"{said}{path} can't be removed: Input/output error; it is left")
