"""What every probe module must do, checked on the host that runs the tests."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

import pytest

from datagen.registry import find, names
from dlemu.telemetry import start_recorder
from dlemu.telemetry.probe_base import AbsentError, Counters, ProbeBase, Scope

PROBES = names("dlemu.telemetry")
UNITS = ("_per_second", "_percent", "_ms", "_mb", "_kib", "_seconds", "watts", "_depth", "_in_flight", "_tasks")


def make_probe(name: str, folder: Path) -> ProbeBase:
    """The test process acts as the recorder, and its parent as the rank."""
    scope = Scope(folders=(str(folder),), ranks={7: os.getppid()})
    try:
        probe: ProbeBase = find("dlemu.telemetry", name, "Probe")(scope)
    except AbsentError as error:
        pytest.skip(f"this host has nothing for it: {error}")
    return probe


@pytest.mark.parametrize("name", PROBES)
def test_readings_are_finite_and_name_their_unit(name: str, tmp_path: Path) -> None:
    probe = make_probe(name, tmp_path)
    assert all(note.strip() for note in probe.notes)
    assert all(device.probe == name and device.name and device.kind for device in probe.devices)
    first = list(probe.read(time.monotonic_ns()))
    burn(0.2)
    if probe.exact:
        probe.mark(time.monotonic_ns())
    second = list(probe.read(time.monotonic_ns()))
    assert second, "a second reading has values"
    for reading in (*first, *second):
        assert math.isfinite(reading.value)
        assert reading.value >= 0
        assert re.fullmatch(r"[a-z0-9_]+", reading.metric)
        assert f"_{reading.metric}".endswith(UNITS), reading.metric
        assert not reading.metric.endswith("_percent") or reading.value <= 100.001
    assert len({(reading.source, reading.metric) for reading in second}) == len(second), "each series once"


def test_a_file_that_the_kernel_returns_in_pieces_is_read_to_its_end() -> None:
    """As mountstats of a host with many mounts: one read returns a page of the records of memory maps."""
    maps = re.findall(r"^VmFlags:", Counters("/proc/self/smaps").text(), re.MULTILINE)
    assert len(maps) >= Path("/proc/self/maps").read_text().count("\n") // 2 > 50


def burn(seconds: float) -> None:
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        sum(range(1000))


def test_the_states_of_the_cpu_add_up(tmp_path: Path) -> None:
    probe = make_probe("cpu", tmp_path)
    list(probe.read(time.monotonic_ns()))
    burn(0.1)
    values = {reading.metric: reading.value for reading in probe.read(time.monotonic_ns())}
    assert set(values) == {f"{state}_percent" for state in ("user", "system", "idle", "iowait", "steal")}
    assert sum(values.values()) == pytest.approx(100)
    assert values["user_percent"] + values["system_percent"] > 0


def test_a_ranks_cpu_time_is_known_for_an_epoch_shorter_than_the_interval(tmp_path: Path) -> None:
    """With an interval of an hour it reads only at the epoch's begin and end; workers started meanwhile count too."""
    scope = Scope(folders=(str(tmp_path),), ranks={7: os.getpid()}, interval_seconds=3600)
    recorder = start_recorder(scope, str(tmp_path))
    recorder.mark()
    before = os.times()
    worker = os.fork()
    if worker == 0:
        burn(0.3)
        os._exit(0)
    burn(0.3)
    os.waitpid(worker, 0)
    after = os.times()
    recorder.mark()
    telemetry = recorder.stop()
    assert telemetry is not None
    _, seconds = telemetry.readings("process", "rank 7", "cpu_seconds")
    used = sum(after[:4]) - sum(before[:4])
    assert used > 0.5
    assert seconds[-1] - seconds[0] == pytest.approx(used, abs=0.3)
    assert len(telemetry.readings("cpu", "", "idle_percent")[1]), "the host's CPU time is known for the same period"


def test_a_rank_that_has_ended_is_left_out() -> None:
    probe = find("dlemu.telemetry", "process", "Probe")(Scope(ranks={7: 2**22 + 1}))
    assert list(probe.read(time.monotonic_ns())) == []
