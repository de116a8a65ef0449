"""Telemetry beside a drive whose every request is known: device counters and the block trace see each of them."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlemu.telemetry import HostTelemetry, Scope, Task, start_recorder

CHUNK_BYTES, CHUNKS = 65_536, 64


@pytest.fixture
def drive(module: Callable[[str], Any]) -> Iterator[Any]:
    drives, throttle = module("drive"), module("throttle")
    reason = drives.why_no_drive()
    if reason:
        pytest.skip(reason)
    with drives.known_drive(throttle.Speed(), size_bytes=64 << 20) as found:
        yield found


def read_directly(path: Path) -> None:
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for chunk in range(CHUNKS):
        assert os.preadv(descriptor, [buffer], chunk * CHUNK_BYTES) == CHUNK_BYTES
    os.close(descriptor)


def recorded(drive: Any, logs: Path, *, block_trace: bool) -> HostTelemetry:
    """Write a file, then record what reading it once does."""
    path = Path(drive.folder) / "file"
    path.write_bytes(os.urandom(CHUNKS * CHUNK_BYTES))
    os.sync()
    scope = Scope(folders=(drive.folder,), block_trace=block_trace)
    recorder = start_recorder(Task(scope=scope, node=0, interval_seconds=0.1), str(logs))
    recorder.mark(training=True)
    read_directly(path)
    recorder.mark(training=False)
    read_directly(path)  # no training: not in the histograms
    telemetry = recorder.stop()
    assert telemetry is not None
    return telemetry


def test_the_device_is_found_and_its_bytes_are_exact(drive: Any, tmp_path: Path) -> None:
    telemetry = recorded(drive, tmp_path, block_trace=False)
    assert [device.name for device in telemetry.devices if device.counted] == [drive.device]
    times, rates = telemetry.readings("block", drive.device, "read_mb_per_second")
    megabytes = (rates[1:] * (times[1:] - times[:-1]) / 1e9).sum()
    assert rates.size >= 3
    assert megabytes == pytest.approx(2 * CHUNKS * CHUNK_BYTES / 1e6, rel=0.01)


def test_the_block_trace_has_each_request_of_training_once(drive: Any, tmp_path: Path) -> None:
    telemetry = recorded(drive, tmp_path, block_trace=True)
    if "trace" not in telemetry.probes:
        pytest.skip(" ".join(telemetry.notes))
    bins = [bin for bin in telemetry.trace if bin.device == drive.device and bin.operation == "read"]
    assert {bin.low: bin.weight for bin in bins if bin.kind == "request_kib"} == {CHUNK_BYTES / 1024: CHUNKS}
    assert sum(bin.weight for bin in bins if bin.kind == "latency_us") == CHUNKS
    depths = {bin.low for bin in bins if bin.kind == "queue_depth_seconds"}
    assert depths == {0, 1}, "one reader, one request at a time"
    assert telemetry.readings("trace", drive.device, "queue_depth_read")[0].size >= 1


def test_a_killed_run_leaves_no_trace_in_the_kernel(drive: Any, tmp_path: Path) -> None:
    rank = os.fork()
    if rank == 0:
        scope = Scope(folders=(drive.folder,), block_trace=True)
        recorder = start_recorder(Task(scope=scope, node=0, interval_seconds=0.1), str(tmp_path))
        recorder.mark(training=True)
        (tmp_path / "pid").write_text(str(recorder._process))
        os._exit(0)  # as a rank ends that was killed
    os.waitpid(rank, 0)
    process = (tmp_path / "pid").read_text()
    psutil.wait_procs([psutil.Process(int(process))] if psutil.pid_exists(int(process)) else [], timeout=60)
    command = f"mount -t tracefs tracefs {tmp_path} && ls {tmp_path}/instances"
    listed = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip(f"tracefs can't be mounted: {listed.stderr}")
    assert f"dlemu-{process}" not in listed.stdout
