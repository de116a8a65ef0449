"""The recorder's log: lines of JSON that are only ever appended, so that what was read outlives a killed recorder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

import msgspec
import numpy as np

from datagen.errors import SpaceError
from dlemu.telemetry._readings import HostTelemetry, Series, Telemetry
from dlemu.telemetry.probe_base import Bin, DeviceFacts, Reading

_PREFIX = "telemetry_"


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what is known before the first reading."""

    host: str
    node: int
    boot_id: str
    begun_ns: int
    interval_seconds: float
    probes: tuple[str, ...]
    devices: tuple[DeviceFacts, ...]
    notes: tuple[str, ...]


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any further line: new series, one probe's readings of one moment, a note, a block trace or the end."""

    series: tuple[Series, ...] = ()
    """Numbered on from those of earlier lines."""
    t: int | None = None
    """When the readings were taken, CLOCK_MONOTONIC in ns."""
    i: tuple[int, ...] = ()
    """Series of each reading."""
    v: tuple[float, ...] = ()
    note: str | None = None
    """For the reader of the result."""
    trace: tuple[Bin, ...] | None = None
    """What a probe says of the run so far, with `notes`; the last such line counts."""
    notes: tuple[str, ...] = ()
    end: int | None = None
    """CLOCK_MONOTONIC in ns, with the recorder's own cost so far; the last such line counts."""
    cpu_seconds: float = 0.0


class LogWriter:
    """Writes to a descriptor; each call is one write, so a log is torn in its last line at most."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._numbers: dict[Series, int] = {}

    def write(self, *lines: LogHead | LogLine) -> None:
        """Append lines; raises SpaceError when the disk is full."""
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if os.write(self._descriptor, data) < len(data):
            raise SpaceError("the disk of the telemetry log is full")  # nothing may follow a line that was cut short

    def add(self, probe: str, now_ns: int, readings: Iterable[Reading]) -> None:
        """Write one probe's readings of one moment; JSON has no words for what is not finite."""
        fresh, numbers, values = [], [], []
        for reading in readings:
            if not math.isfinite(reading.value):
                continue
            series = Series(probe, reading.source, reading.metric)
            if series not in self._numbers:
                self._numbers[series] = len(self._numbers)
                fresh.append(series)
            numbers.append(self._numbers[series])
            values.append(round(reading.value, 6))
        if numbers:
            new_series = [LogLine(series=tuple(fresh))] if fresh else []
            self.write(*new_series, LogLine(t=now_ns, i=tuple(numbers), v=tuple(values)))


def log_path(folder: str, node: int) -> str:
    """Return where a node's log lies in a run's live folder."""
    return os.path.join(folder, f"{_PREFIX}{node:05d}.jsonl")


def is_log(name: str) -> bool:
    """Say whether a file of a live folder is a recorder's log."""
    return name.startswith(_PREFIX)


def read_logs(folder: str) -> Telemetry:
    """Return what the recorders of a failed run left in its live folder."""
    hosts = []
    for name in sorted(os.listdir(folder)):
        if is_log(name):
            with open(os.path.join(folder, name), "rb") as log:
                hosts.append(parse_log(log.read()))
    return tuple(host for host in hosts if host is not None)


def _fits(line: LogLine, series: int) -> bool:
    """Say whether a line's readings are of series that earlier lines named."""
    moments = (moment for moment in (line.t, line.end) if moment is not None)
    return (
        len(line.i) == len(line.v)
        and all(0 <= number < series for number in line.i)
        and all(abs(moment) < 2**63 for moment in moments)
    )


def parse_log(data: bytes) -> HostTelemetry | None:
    """Return what a log says, up to a line that is cut short or damaged; None for one without a head."""
    first, *lines = data.split(b"\n")[:-1] or [b""]
    try:
        head = msgspec.json.decode(first, type=LogHead)
    except msgspec.DecodeError:
        return None
    decoder = msgspec.json.Decoder(LogLine)
    ended_ns, cpu_seconds, notes, closing = head.begun_ns, 0.0, list(head.notes), LogLine()
    series: list[Series] = []
    times: list[int] = []
    which: list[int] = []
    value: list[float] = []
    for number, text in enumerate(lines, 2):
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError:
            line = None
        if line is None or not _fits(line, len(series)):  # later lines count series on from this one
            notes.append(f"the telemetry of {head.host} is damaged in line {number}: what follows is left out")
            break
        series += line.series
        if line.t is not None:
            ended_ns = line.t
            times += [ended_ns] * len(line.i)
            which += line.i
            value += line.v
        elif line.note is not None:
            notes.append(line.note)
        elif line.trace is not None:
            closing = line
        elif line.end is not None:
            ended_ns, cpu_seconds = line.end, line.cpu_seconds
    return HostTelemetry(
        host=head.host,
        node=head.node,
        boot_id=head.boot_id,
        interval_seconds=head.interval_seconds,
        probes=head.probes,
        devices=head.devices,
        notes=tuple(dict.fromkeys([*notes, *closing.notes])),
        trace=closing.trace or (),
        cpu_seconds=cpu_seconds,
        seconds=(ended_ns - head.begun_ns) / 1e9,
        series=tuple(series),
        which=np.array(which, np.int32),
        time_ns=np.array(times, np.int64),
        value=np.array(value, np.float64),
    )
