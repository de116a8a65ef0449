"""`dlemu try FOLDER`: eight lines about a drive; nothing of it stays, and nothing of the user's is touched."""

from __future__ import annotations

import os
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from datagen.errors import SpaceError, UserError
from dlemu.cli import cli
from dlemu.config import load
from dlemu.doctor.check_base import Check
from dlemu.jobs.probe import run
from dlemu.machine.environment import describe_folder
from dlemu.report.screen import Screen
from dlemu.studies import first_look as look
from tests.cli.test_first_steps import ended
from tests.e2e.harness import start, until, wait
from tests.users_files import UsersFiles


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's files in it, and so little to read that a test does not take long."""
    monkeypatch.setattr(look, "MAX_BYTES", 12_000_000)
    monkeypatch.setattr(look, "MIN_BYTES", 12_000_000)
    monkeypatch.setattr(look, "FIRST_BYTES", 100_000)
    monkeypatch.setattr(look, "READ_SECONDS", 0.0)
    monkeypatch.setattr(look, "PROBE_SECONDS", 0.1)
    (folder := tmp_path / "Ann's drive").mkdir()
    return folder


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.slow
def test_it_answers_in_eight_lines_and_leaves_the_folder_as_it_was(
    drive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users = UsersFiles()
    users.put(drive)
    before = left(drive)
    monkeypatch.setattr(look, "check_free_cores", lambda _: Check(observed="2 cores are free"))
    cli.main([str(drive)], standalone_mode=False)
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith(str(drive))
    for line, name in zip(lines[1:3], ("unet3d", "retinanet"), strict=True):
        form = rf"  {name} +.*(h100|b200).*: reads .*B/s, [\d,]+ files/s; 1 needs .*B/s.* \(AU \d+ %\)"
        assert re.search(form, line), line
    for line, label in zip(lines[3:], ("at most", "limit", "accuracy", "took", "next"), strict=True):
        assert line.startswith(f"  {label} "), line
    assert "requests/s" in lines[3]
    _, command, *words = shlex.split(lines[-1].removeprefix("  next ").partition("  (")[0])
    assert (command, words.pop()) == ("size", "--make")
    assert load(words).dataset.data_folder == f"{drive}/dlemu-set"
    assert str(drive / ".try.dlemu-") in said.err
    assert (left(drive), users.changed()) == (before, [])


@pytest.mark.slow
def test_without_o_direct_it_says_nothing_of_the_drives_most(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (drive / ".try.dlemu-0.part").mkdir()  # of one that was killed

    def refuse(path: str) -> None:
        raise UserError(f"{path} can't be read with O_DIRECT")

    monkeypatch.setattr(run, "_check_direct", refuse)
    screen: Screen = look.first_look(str(drive))
    labels = [line.label for line in screen.lines]
    assert labels == ["unet3d", "retinanet", "accuracy", "took", "next"]
    assert screen.notes[-1].startswith(".try.dlemu-0.part in it is of a `dlemu try` that was killed")
    assert left(drive) == [".try.dlemu-0.part"]


def test_a_disk_that_fills_up_leaves_nothing(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object, **__: object) -> None:
        raise SpaceError("the disk is full")

    monkeypatch.setattr(look, "make_on_this_host", fill)
    with pytest.raises(SpaceError, match="the disk is full"):
        look.first_look(str(drive))
    assert left(drive) == []


@pytest.mark.parametrize(
    ("free", "written"), [(50_000_000_000, 960_000_000), (10_300_000_000, 300_000_000), (10_090_000_000, None)]
)
def test_a_tenth_of_the_space_stays_free(
    free: int, written: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = replace(describe_folder(str(tmp_path)), total_bytes=100_000_000_000, free_bytes=free)
    made: list[int] = []

    def stop(folder: str, data_bytes: int) -> None:
        made.append(data_bytes)
        raise SpaceError("stopped here")

    monkeypatch.setattr(look, "describe_folder", lambda _: facts)
    monkeypatch.setattr(look, "_write_bytes_per_second", lambda _: 1e9)
    monkeypatch.setattr(look, "_drive_maximum", stop)
    with pytest.raises(SpaceError, match="stopped here" if written else "has 10.1 GB free of 100.0 GB: wanted 96.0 MB"):
        look.first_look(str(tmp_path))
    assert [3 * one for one in made] == ([written] if written else [])


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/dev/shm", "/dev/shm is on tmpfs, which is memory: no drive can be tried there"),
        ("{}/none", "none is not a folder"),
        ("{}/file", "file is not a folder"),
    ],
)
def test_what_is_no_drives_folder_is_named(
    folder: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    shared = os.listdir("/dev/shm")
    assert ended(["try", folder.format(tmp_path)], monkeypatch) == 2
    text = capsys.readouterr()
    assert said in text.err
    assert (text.out, left(tmp_path)) == ("", ["file"])
    assert [name for name in os.listdir("/dev/shm") if name not in shared and "try" in name] == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "begun"), [(signal.SIGINT, "first"), (signal.SIGTERM, "retinanet")])
def test_an_interruption_removes_what_was_written(number: signal.Signals, begun: str, tmp_path: Path) -> None:
    users = UsersFiles()
    users.put(tmp_path)
    before = left(tmp_path)
    if psutil.disk_usage(str(tmp_path)).percent > 85:
        pytest.skip("the disk of this machine is too full")
    running = start("try", str(tmp_path))
    until(lambda: any(tmp_path.glob(f".try.*/{begun}")), "its first files")
    running.send_signal(number)
    assert wait(running).status == 128 + number
    assert (left(tmp_path), users.changed()) == (before, [])
