"""What scripts/validation measures with: a drive has its speed and leaves nothing; libraries read by the same calls."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import Dataset, inspect
from datagen.spec import DatasetSpec, EngineName
from dlemu.telemetry import HostTelemetry, Scope, start_recorder
from tests.datagen.conftest import make
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
    return present(recorder.stop())


def test_the_device_is_found_and_its_bytes_are_exact(drive: Any, tmp_path: Path) -> None:
    telemetry = recorded(drive, tmp_path)
    assert [device.name for device in telemetry.devices if device.counted] == [drive.device]
    times, rates = telemetry.readings("block", drive.device, "read_mb_per_second")
    megabytes = (rates[1:] * (times[1:] - times[:-1]) / 1e9).sum()
    assert rates.size >= 3
    assert megabytes == pytest.approx(2 * CHUNKS * CHUNK_BYTES / 1e6, rel=0.01)


# By default files are read by the calls that the format's usual library makes: as many, of as many bytes.


SAMPLES_PER_FILE = {"indexed_binary": 40, "mmap_indexed_binary": 40, "parquet": 40, "webdataset": 40, "hdf5": 1}
SIZES = (5_000, 100_000)


def dataset(folder: Path, name: str, sample_bytes: int, samples_per_file: int, **changes: Any) -> Dataset:
    side = int((sample_bytes * 0.9) ** 0.5) if name in ("png", "tiff") else 0
    spec = DatasetSpec(
        data_folder=str(folder / f"{name}-{sample_bytes}"),
        format=name,
        record_length_bytes=sample_bytes,
        record_dims=(side, side) if side else (),
        num_files_train=2,
        num_samples_per_file=samples_per_file,
        **changes,
    )
    return inspect(make(spec))


def by_dlemu(found: Dataset, batch: int, engine: EngineName = "matched") -> None:
    fetch = FetchSpec(found, found.train, engine=engine)
    fetcher, out = Fetcher(fetch), AlignedBuffer().view(fetch.slot_bytes(batch))
    for first in range(0, found.train.num_samples, batch):
        fetcher.fetch(range(first, first + batch), out)
    fetcher.close()


def reads(action: Callable[[], object]) -> tuple[int, int]:
    """Return calls and bytes read by this process, all its threads together: the least, as others of them add to it."""
    return min(_reads_once(action) for _ in range(3))


def _reads_once(action: Callable[[], object]) -> tuple[int, int]:
    before, between = _account(), _account()
    action()
    after = _account()
    own = [late - early for late, early in zip(between, before, strict=True)]
    return after[0] - between[0] - own[0], after[1] - between[1] - own[1]


def _account() -> tuple[int, int]:
    values = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(values["syscr"]), int(values["rchar"])


def by_script(scripts: Any, found: Dataset) -> None:
    layout = found.train
    places = (layout.locate(sample) for sample in range(layout.num_samples))
    scripts.read(found.spec.format, [(layout.path(file), index) for file, index in places])


CASES = [
    (name, size, SAMPLES_PER_FILE.get(name, 1))
    for name in ("npz", "npy", "hdf5", "jpeg", "png", "tiff", "csv", *SAMPLES_PER_FILE)
    for size in SIZES
] + [("npz", 5_000, 40), ("npy", 5_000, 40), ("hdf5", 5_000, 40), ("hdf5", 100_000, 40)]


@pytest.mark.parametrize(("name", "sample_bytes", "samples_per_file"), sorted(set(CASES)))
def test_calls_and_bytes_are_those_of_the_library(
    module: Callable[[str], Any], tmp_path: Path, name: str, sample_bytes: int, samples_per_file: int
) -> None:
    scripts = module("library_scripts")
    found = dataset(tmp_path, name, sample_bytes, samples_per_file)
    by_script(scripts, found)  # what is imported is read, too
    by_dlemu(found, samples_per_file)
    theirs = reads(lambda: by_script(scripts, found))
    assert reads(lambda: by_dlemu(found, samples_per_file)) == theirs


WITHIN = 0.10
MOST_ROUNDS = 15


def alike(rounds: list[tuple[tuple[int, float], tuple[int, float]]]) -> bool:
    """Whether counts and sizes of both readers, each from its least to its most, lie within 10 % of each other."""
    (their_counts, their_sizes), (our_counts, our_sizes) = (
        zip(*side, strict=True) for side in zip(*rounds, strict=True)
    )
    return _overlap(their_counts, our_counts) and _overlap(their_sizes, our_sizes)


def _overlap(theirs: tuple[float, ...], ours: tuple[float, ...]) -> bool:
    return min(ours) <= max(theirs) * (1 + WITHIN) and max(ours) >= min(theirs) * (1 - WITHIN)


@pytest.mark.slow
@pytest.mark.root
def test_of_mapped_files_the_device_gets_the_requests_of_the_library(drives: Any) -> None:
    """A map is read by no calls that could be counted."""
    apart = []
    with drives.known_drive(drives.Speed(), size_bytes=1 << 30) as drive:
        for sample_bytes in (5_000, 100_000, 600_000):
            found = dataset(Path(drive.folder), "mmap_indexed_binary", sample_bytes, 40)
            by_library, by_us = partial(by_script_apart, found), partial(by_dlemu, found, 40)
            rounds: list[tuple[tuple[int, float], tuple[int, float]]] = []
            # Of a large file read in order the kernel's read-ahead races with its reader: both vary by a half.
            while len(rounds) < MOST_ROUNDS and not (rounds and alike(rounds)):
                rounds.append((requests(drive, by_library), requests(drive, by_us)))
            shutil.rmtree(found.spec.data_folder)
            if not alike(rounds):
                apart.append((sample_bytes, rounds))
    assert not apart


def requests(drive: Any, action: Callable[[], object]) -> tuple[int, float]:
    """Return how many reads the device served with nothing in the page cache, and their mean size in KiB.

    Where another test begins a mount namespace of its own meanwhile, the mount lives on in it, with its page cache.
    """
    stat = Path(f"/sys/block/{drive.device}/stat")
    count = 0
    while not count:
        drive.forget_cache()
        before = stat.read_text().split()
        action()
        after = stat.read_text().split()
        count, sectors = (int(after[field]) - int(before[field]) for field in (0, 2))
    return count, sectors / 2 / count


def by_script_apart(found: Dataset) -> None:
    """Read by the script in a process of its own, which ends with its maps (and TensorFlow's threads)."""
    layout = found.train
    places = (layout.locate(sample) for sample in range(layout.num_samples))
    samples = [f"{layout.path(file)}:{index}" for file, index in places]
    argv = [sys.executable, "-m", "validation.library_scripts", found.spec.format, "1", "1", *samples]
    subprocess.run(argv, check=True, capture_output=True)
