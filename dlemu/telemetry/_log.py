"""The recorder's log: lines of JSON that are only ever appended, so that what was read outlives a killed recorder.

A line is the head (`host`, ...), new `series`, readings (`t`, `i`, `v`), a `note`, a block `trace`, or
the last word (`end`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from datagen.errors import SpaceError
from dlemu.telemetry._requests import Bin
from dlemu.telemetry.probe_base import HostTelemetry, Reading, Series, Telemetry

PREFIX = "telemetry_"


class LogWriter:
    """Writes to a descriptor; each call is one write, so a log is torn in its last line at most."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._numbers: dict[Series, int] = {}

    def head(self, **values: Any) -> None:
        """Write what is known before the first reading."""
        self._write([values])

    def note(self, text: str) -> None:
        """Write a sentence for the reader of the result."""
        self._write([{"note": text}])

    def closing(self, notes: Iterable[str], trace: Iterable[Bin]) -> None:
        """Write what a probe says of the run so far; the last such line counts."""
        self._write([{"trace": list(trace), "notes": list(notes)}])

    def end(self, cpu_seconds: float, now_ns: int) -> None:
        """Write the recorder's own cost so far; the last such line counts."""
        self._write([{"end": now_ns, "cpu_seconds": cpu_seconds}])

    def add(self, probe: str, now_ns: int, readings: Iterable[Reading]) -> None:
        """Write one probe's readings of one moment."""
        fresh, numbers, values = [], [], []
        for reading in readings:
            series = Series(probe, reading.source, reading.metric)
            if series not in self._numbers:
                self._numbers[series] = len(self._numbers)
                fresh.append(series)
            numbers.append(self._numbers[series])
            values.append(round(reading.value, 6))
        if numbers:
            lines: list[dict[str, Any]] = [{"series": fresh}] if fresh else []
            self._write([*lines, {"t": now_ns, "i": numbers, "v": values}])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        data = text.encode()
        if os.write(self._descriptor, data) < len(data):
            raise SpaceError("the disk of the telemetry log is full")  # nothing may follow a line that was cut short


def log_path(folder: str, node: int) -> str:
    """Return where a node's log lies in a run's live folder."""
    return os.path.join(folder, f"{PREFIX}{node:05d}.jsonl")


def read_logs(folder: str) -> Telemetry:
    """Return what the recorders of a failed run left in its live folder."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(PREFIX))
    found = []
    for name in names:
        with open(os.path.join(folder, name), "rb") as log:
            found.append(parse_log(log.read()))
    return tuple(host for host in found if host is not None)


def parse_log(data: bytes) -> HostTelemetry | None:
    """Return what a log says, without a line that was cut short; None for one without a head."""
    lines = _whole_lines(data)
    head = next(lines, None)
    if head is None:
        return None
    begun_ns = ended_ns = head["begun_ns"]
    cpu_seconds, notes = 0.0, list(head["notes"])
    closing: dict[str, Any] = {"trace": [], "notes": []}
    series: list[Series] = []
    times, which, value = [], [], []
    for line in lines:
        if "t" in line:
            ended_ns = line["t"]
            times += [ended_ns] * len(line["i"])
            which += line["i"]
            value += line["v"]
        elif "series" in line:
            series += [Series(*names) for names in line["series"]]
        elif "note" in line:
            notes.append(line["note"])
        elif "trace" in line:
            closing = line
        else:
            ended_ns, cpu_seconds = line["end"], line["cpu_seconds"]
    return HostTelemetry(
        host=head["host"],
        node=head["node"],
        boot_id=head["boot_id"],
        interval_seconds=head["interval_seconds"],
        probes=tuple(head["probes"]),
        devices=tuple(head["devices"]),
        notes=tuple(dict.fromkeys([*notes, *closing["notes"]])),
        trace=tuple(Bin(*values) for values in closing["trace"]),
        cpu_seconds=cpu_seconds,
        seconds=(ended_ns - begun_ns) / 1e9,
        series=tuple(series),
        which=np.array(which, np.int32),
        time_ns=np.array(times, np.int64),
        value=np.array(value, np.float64),
    )


def _whole_lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n")[:-1]:
        yield json.loads(line)
