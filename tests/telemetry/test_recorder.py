"""The recorder process: it reads on time, replies to commands, keeps its readings, and ends with its rank.

And a run's telemetry as tables: reading them back gives the same.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from datagen.errors import SpaceError
from dlemu.telemetry import (
    HostTelemetry,
    Recorder,
    RecorderHead,
    Scope,
    Series,
    _recorder,
    from_tables,
    memory,
    read_logs,
    start_recorder,
    to_table,
)
from dlemu.telemetry._readings import LogLine, LogWriter, parse_log
from dlemu.telemetry.probe_base import DeviceFacts, Reading
from tests.runs import present


def started(folder: Path, interval_seconds: float = 0.05) -> Recorder:
    scope = Scope(node=3, interval_seconds=interval_seconds, folders=(str(folder),), ranks={0: os.getpid()})
    return start_recorder(scope, str(folder))


def test_it_reads_at_its_interval_and_returns_all_readings_at_the_end(tmp_path: Path) -> None:
    recorder = started(tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        len(host.readings("memory", "", "used_mb")[0]) >= 4 for host in read_logs(str(tmp_path))
    ):
        time.sleep(0.05)
    telemetry = present(recorder.stop())
    assert telemetry.node == 3
    assert telemetry.boot_id
    assert {"cpu", "memory"} <= set(telemetry.probes)
    times, values = telemetry.readings("memory", "", "used_mb")
    assert len(times) >= 4
    assert (np.diff(times) >= 0.02e9).all(), "a busy host has it read less often, never more"
    assert (values > 0).all()
    assert abs(times[-1] - time.monotonic_ns()) < 60e9
    assert 0 < telemetry.cpu_seconds < 5
    assert telemetry.readings("memory", "", "no_such_metric")[0].size == 0
    assert not psutil.pid_exists(recorder._process)


def hang(probe: memory.Probe, now_ns: int) -> Iterator[Reading]:
    time.sleep(600)
    yield from ()


@pytest.mark.parametrize("how", ["killed", "suspended", "hangs"])
def test_a_lost_recorder_is_named_keeps_its_readings_and_never_blocks_the_run(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recorder, "_SHUTDOWN_SECONDS", 1)
    if how == "hangs":
        monkeypatch.setattr(memory.Probe, "read", hang)
    recorder = started(tmp_path, interval_seconds=600)
    recorder._control.settimeout(0.3 if how == "hangs" else 60)
    recorder.mark()
    process = psutil.Process(recorder._process)
    if how == "killed":
        process.kill()
        process.wait()
    elif how == "suspended":
        process.suspend()
    recorder._control.settimeout(0.3)
    recorder.mark()
    began = time.monotonic()
    for _ in range(100):
        recorder.mark()
    assert time.monotonic() - began < 10, "who did not answer once is not asked again"
    telemetry = present(recorder.stop())
    assert telemetry.readings("memory", "", "used_mb")[0].size == (how != "hangs")
    assert recorder.lost
    assert not psutil.pid_exists(recorder._process)


def test_where_the_runs_folder_is_not_visible_the_log_is_in_memory(tmp_path: Path) -> None:
    recorder = started(tmp_path / "not" / "here")
    telemetry = present(recorder.stop())
    assert ("cpu" in telemetry.probes, recorder.lost) == (True, False)


def test_a_fork_after_the_end_keeps_its_files(tmp_path: Path) -> None:
    started(tmp_path).stop()
    with open(os.devnull) as first, open(os.devnull) as second:  # where the recorder's socket and log were
        child = os.fork()
        if child == 0:
            lost = [file for file in (first, second) if not os.path.exists(f"/proc/self/fd/{file.fileno()}")]
            os._exit(len(lost))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_it_dies_with_the_rank_and_its_readings_remain(tmp_path: Path) -> None:
    rank = os.fork()
    if rank == 0:
        recorder = started(tmp_path)
        recorder.mark()
        (tmp_path / "pid").write_text(str(recorder._process))
        time.sleep(600)
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        process = psutil.Process(int((tmp_path / "pid").read_text()))
    finally:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    (telemetry,) = read_logs(str(tmp_path))
    assert telemetry.readings("memory", "", "used_mb")[0].size >= 1


def test_it_ignores_ctrl_c(tmp_path: Path) -> None:
    recorder = started(tmp_path)
    recorder.mark()
    process = psutil.Process(recorder._process)
    process.send_signal(signal.SIGINT)
    recorder.mark()
    assert process.is_running()
    assert recorder.stop() is not None


DISK = DeviceFacts(probe="block", name="sda", kind="disk", below=("nvme0c0n1",), counted=True, size_bytes=1 << 40)


def written(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    log = LogWriter(descriptor)
    log.write(host(0, "a", 0).head)
    log.add("x", 2_000_000_000, [Reading("sda", "depth", 1.5), Reading("sdb", "depth", 2)])
    twice = [Reading("twice", "depth", 1), Reading("twice", "depth", 1)]  # as of two sensors with one name
    log.add("x", 3_000_000_000, [*twice, Reading("sdb", "depth", 3), Reading("sdc", "depth", 4)])
    log.write(LogLine(note="second"))
    log.write(LogLine(cpu_seconds=0.25))
    os.close(descriptor)
    return path.read_bytes()


def test_a_log_is_parsed_as_it_was_written(tmp_path: Path) -> None:
    telemetry = present(parse_log(written(tmp_path / "log")))
    assert telemetry.notes == ("a note", "second")
    assert telemetry.devices == (DISK,)
    assert telemetry.sources("x") == ["sda", "sdb", "sdc", "twice"]
    assert telemetry.readings("x", "sdc", "depth")[1].tolist() == [4]
    times, values = telemetry.readings("x", "sdb", "depth")
    assert times.tolist() == [2_000_000_000, 3_000_000_000]
    assert values.tolist() == [2, 3]
    assert telemetry.cpu_seconds == 0.25


def test_a_log_may_be_truncated_anywhere(tmp_path: Path) -> None:
    whole = written(tmp_path / "log")
    counts = []
    for end in range(len(whole) + 1):
        telemetry: HostTelemetry | None = parse_log(whole[:end])
        counts.append(-1 if telemetry is None else len(telemetry.value))
    assert counts == sorted(counts), "more of the log never says less"
    assert (counts[0], counts[-1]) == (-1, 6)


def test_nothing_is_written_after_a_line_truncated_by_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(tmp_path / "log")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:-3]))
    with pytest.raises(SpaceError):
        written(tmp_path / "full")
    assert whole.startswith((tmp_path / "full").read_bytes())


@pytest.mark.parametrize(
    "line", [b"{}x", b'{"t": "x"}', b'{"t":1,"i":[9],"v":[1.0]}', b'{"t":1,"i":[0],"v":[]}', b"\xff", b'{"t":9e99}']
)
def test_lines_after_a_damaged_one_are_ignored_with_a_note(tmp_path: Path, line: bytes) -> None:
    lines = written(tmp_path / "log").split(b"\n")
    for at in range(1, len(lines) - 1):
        whole = present(parse_log(b"\n".join([*lines[:at], b""])))
        telemetry = present(parse_log(b"\n".join([*lines[:at], line, *lines[at + 1 :]])))
        assert telemetry.value.tolist() == whole.value.tolist()
        assert any(f"damaged in line {at + 1}:" in note for note in telemetry.notes)


@pytest.mark.parametrize("data", [b"", b'{"host":', b'{"host": 1}\n', b"\xff\n{}\n"])
def test_a_log_without_a_head_is_no_telemetry(data: bytes) -> None:
    assert parse_log(data) is None


def host(node: int, name: str, readings: int) -> HostTelemetry:
    series = (Series("block", "sdb", "mb"), Series("block", "sda", "mb"), Series("cpu", "", "mb"))
    return HostTelemetry(
        host=name,
        node=node,
        boot_id=f"boot {node}",
        interval_seconds=0.5,
        probes=("block", "cpu"),
        devices=(DISK,),
        notes=("a note",),
        cpu_seconds=0.1,
        series=series[: min(readings, 3)],
        which=(np.arange(readings) % 3).astype(np.int32),
        time_ns=np.arange(readings) + 1_000 * node,
        value=np.linspace(0, 1, readings) * (node + 1),
    )


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("same", "same")])
@pytest.mark.parametrize("readings", [0, 2, 100])
def test_a_results_folder_preserves_telemetry(names: tuple[str, ...], readings: int, tmp_path: Path) -> None:
    telemetry = tuple(host(node, name, readings + node) for node, name in enumerate(names))
    pq.write_table(to_table(telemetry), tmp_path / "telemetry.parquet", compression="zstd")
    heads = msgspec.json.decode(msgspec.json.encode([one.head for one in telemetry]), type=tuple[RecorderHead, ...])
    found = from_tables(heads, pq.read_table(tmp_path / "telemetry.parquet"))
    for one, other in zip(found, telemetry, strict=True):
        assert (one.head, one.series, one.which.dtype) == (other.head, other.series, np.dtype(np.int32))
        for name in ("which", "time_ns", "value"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_without_telemetry_the_table_is_empty() -> None:
    table = to_table(())
    assert table.column_names == ["time_ns", "host", "probe", "source", "metric", "value"]
    assert from_tables((), table) == ()
