"""A drive of known speed has that speed, and nothing of it outlives its maker."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.telemetry import HostTelemetry, Scope, start_recorder
from tests.runs import present

MB = 1_000_000
FILE_BYTES = 32 << 20

MAKER = """
import subprocess, sys, time
from validation.drive import Speed, known_drive

with known_drive(Speed(read_bytes_per_second=50_000_000), size_bytes=64 << 20) as drive:
    with open(drive.folder + "/file", "wb") as file:
        file.write(bytes(1 << 20))
    tail = subprocess.Popen(
        drive.command(["tail", "-f", drive.folder + "/file"]), stdout=subprocess.DEVNULL, start_new_session=True
    )
    print(drive.folder, drive.device, tail.pid, flush=True)
    time.sleep(300)
"""


@pytest.mark.root
def test_what_was_written_is_not_in_memory_after_forgetting(drive: Any) -> None:
    path = Path(drive.folder) / "file"
    path.write_bytes(b"x" * FILE_BYTES)
    before = _sectors_read(drive.device)
    assert path.read_bytes()[:1] == b"x"
    cached = _sectors_read(drive.device) - before
    drive.forget_cache()
    assert path.read_bytes()[:1] == b"x"
    read = _sectors_read(drive.device) - before - cached
    assert 512 * read >= FILE_BYTES > 512 * cached


def _sectors_read(device: str) -> int:
    return int(Path(f"/sys/block/{device}/stat").read_text().split()[2])


@pytest.mark.root
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_it_outlives_its_maker(drives: Any, end: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as maker:
        try:
            folder, device, reader = present(maker.stdout).readline().decode().split()
            assert os.path.ismount(folder)
            maker.send_signal(end)
            assert maker.wait(60) != 0
        finally:
            maker.kill()
    name = os.path.basename(os.path.dirname(folder))
    deadline = time.monotonic() + 60
    while left := _left(name, device, int(reader)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.root
def test_a_process_that_is_being_started_does_not_escape(
    drives: Any, module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    janitor, throttle = module("janitor"), module("throttle").make_throttle(f"dlemu-drive-{os.getpid()}-late")
    throttle.make()
    argv = throttle.command(["sleep", "300"])
    entered = Path(throttle.cgroup, "cgroup.procs")
    held = ["sh", "-c", 'read -r _; exec "$@"', "sh", *argv]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as late:

        def start(_: object) -> None:
            """Let it go when the group's processes have been killed."""
            present(late.stdin).close()
            deadline = time.monotonic() + 60
            while late.poll() is None and not (entered.exists() and str(late.pid) in entered.read_text()):
                assert time.monotonic() < deadline

        monkeypatch.setattr(janitor.Traces, "_unmount", start)
        monkeypatch.setattr(janitor, "PATIENCE_SECONDS", 0.2)
        try:
            troubles = janitor.Traces(folder="", mount="", cgroup=throttle.cgroup).remove()
        finally:
            late.kill()
    if os.path.isdir(throttle.cgroup):
        os.rmdir(throttle.cgroup)
    assert not troubles


def _left(name: str, device: str, process: int) -> list[str]:
    """What is still there of a drive, the file behind its device included."""
    backing = Path(f"/sys/block/{device}/loop/backing_file")
    places = [f"/tmp/{name}", f"/dev/shm/{name}.img", f"/sys/fs/cgroup/blkio/{name}", f"/sys/fs/cgroup/{name}"]
    left = [place for place in places if os.path.exists(place)]
    if backing.exists() and name in backing.read_text():
        left.append(device)
    if name in Path("/proc/mounts").read_text():
        left.append("mount")
    if os.path.exists(f"/proc/{process}/cgroup") and name in Path(f"/proc/{process}/cgroup").read_text():
        left.append(f"process {process}")
    return left


@pytest.mark.root
def test_a_drive_larger_than_the_memory_left_is_refused(drives: Any) -> None:
    with (
        pytest.raises(UserError, match="wants as much free in /dev/shm"),
        drives.known_drive(drives.Speed(), size_bytes=1 << 50),
    ):
        pass


def test_users_without_root_are_told_why(module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    drives = module("drive")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in drives.why_no_drive()
    with pytest.raises(UserError, match="needs root"), drives.known_drive(drives.Speed(), size_bytes=1):
        pass


# Telemetry beside a drive whose every request is known: device counters see each of them.


CHUNK_BYTES, CHUNKS = 65_536, 64


def read_directly(path: Path) -> None:
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for chunk in range(CHUNKS):
        assert os.preadv(descriptor, [buffer], chunk * CHUNK_BYTES) == CHUNK_BYTES
    os.close(descriptor)


def recorded(drive: Any, logs: Path) -> HostTelemetry:
    """Write a file, then record what reading it once does."""
    path = Path(drive.folder) / "file"
    path.write_bytes(os.urandom(CHUNKS * CHUNK_BYTES))
    os.sync()
    scope = Scope(folders=(drive.folder,), interval_seconds=0.1)
    recorder = start_recorder(scope, str(logs))
    recorder.mark()
    read_directly(path)
    recorder.mark()
    read_directly(path)
    telemetry = present(recorder.stop())
    return telemetry


def test_the_device_is_found_and_its_bytes_are_exact(drive: Any, tmp_path: Path) -> None:
    telemetry = recorded(drive, tmp_path)
    assert [device.name for device in telemetry.devices if device.counted] == [drive.device]
    times, rates = telemetry.readings("block", drive.device, "read_mb_per_second")
    megabytes = (rates[1:] * (times[1:] - times[:-1]) / 1e9).sum()
    assert rates.size >= 3
    assert megabytes == pytest.approx(2 * CHUNKS * CHUNK_BYTES / 1e6, rel=0.01)
