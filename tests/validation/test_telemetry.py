"""Telemetry beside a drive whose every request is known: device counters see each of them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlemu.telemetry import HostTelemetry, Scope, start_recorder

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


def recorded(drive: Any, logs: Path) -> HostTelemetry:
    """Write a file, then record what reading it once does."""
    path = Path(drive.folder) / "file"
    path.write_bytes(os.urandom(CHUNKS * CHUNK_BYTES))
    os.sync()
    scope = Scope(folders=(drive.folder,), interval_seconds=0.1)
    recorder = start_recorder(scope, str(logs))
    recorder.mark(training=True)
    read_directly(path)
    recorder.mark(training=False)
    read_directly(path)
    telemetry = recorder.stop()
    assert telemetry is not None
    return telemetry


def test_the_device_is_found_and_its_bytes_are_exact(drive: Any, tmp_path: Path) -> None:
    telemetry = recorded(drive, tmp_path)
    assert [device.name for device in telemetry.devices if device.counted] == [drive.device]
    times, rates = telemetry.readings("block", drive.device, "read_mb_per_second")
    megabytes = (rates[1:] * (times[1:] - times[:-1]) / 1e9).sum()
    assert rates.size >= 3
    assert megabytes == pytest.approx(2 * CHUNKS * CHUNK_BYTES / 1e6, rel=0.01)
