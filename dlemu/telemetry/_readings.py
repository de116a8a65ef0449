"""The telemetry of a run: in memory (`HostTelemetry`), as an Arrow table in the run's folder, and in recorders' logs.

A host's telemetry consists of its head (`RecorderHead`, small and typed) and its readings (a table, by `to_table`);
`from_tables` combines them again. During the run, the recorder appends both to a log of JSON lines, which survives if
the recorder is killed. The log begins with the head. Example of the lines after it:

    {"series": [["block", "sda", "in_flight"], ["memory", "", "used_mb"]]}     series 0 and 1
    {"t": 8123456789, "i": [0], "v": [3]}                                      3 requests in flight on sda
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from datagen.errors import SpaceError
from dlemu.telemetry.probe_base import DeviceFacts, Reading

if TYPE_CHECKING:  # not imported in ranks, which do not need Arrow
    import pyarrow as pa

_ROW_COUNTS_KEY = b"readings_per_host"  # in the table's metadata: rows of each host, because host names may repeat
_PREFIX = "telemetry_"  # of the logs' file names


class Series(NamedTuple):
    """The key of a time series: one metric of one source, read by one probe."""

    probe: str
    source: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class RecorderHead:
    """A host's telemetry without its readings."""

    host: str
    node: int
    boot_id: str
    """The kernel's boot id: nodes (containers) with equal ids share a machine and its devices."""
    interval_seconds: float
    probes: tuple[str, ...]
    devices: tuple[DeviceFacts, ...]
    notes: tuple[str, ...]
    cpu_seconds: float = 0.0
    """CPU time of the recorder itself until the last line of its log."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostTelemetry(RecorderHead):
    """All telemetry of one host. Reading i is the value `value[i]` of `series[which[i]]` at time `time_ns[i]`."""

    series: tuple[Series, ...]  # in the order of their first readings
    which: NDArray[np.int32]
    time_ns: NDArray[np.int64]  # CLOCK_MONOTONIC of the host
    value: NDArray[np.float64]

    @property
    def head(self) -> RecorderHead:
        """The telemetry without readings."""
        return RecorderHead(**{field.name: getattr(self, field.name) for field in fields(RecorderHead)})

    def readings(self, probe: str, source: str, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the times (ns) and values of one series in order; both are empty if there is no such series."""
        series = Series(probe, source, metric)
        if series not in self.series:
            return self.time_ns[:0], self.value[:0]
        rows = self.which == self.series.index(series)
        return self.time_ns[rows], self.value[rows]

    def sources(self, probe: str) -> list[str]:
        """Return the sources of a probe's readings: device names, interfaces, or ranks."""
        return sorted({series.source for series in self.series if series.probe == probe})


Telemetry = tuple[HostTelemetry, ...]  # of a run: one entry per host in node order; empty if none was recorded


def to_table(telemetry: Telemetry) -> pa.Table:
    """Return a table of one row per reading, host by host: columns time_ns, host, probe, source, metric, value."""
    import pyarrow as pa

    text_type = pa.dictionary(pa.int32(), pa.string())
    types = dict.fromkeys(("host", *Series._fields), text_type)
    tables = [pa.schema({"time_ns": pa.int64(), **types, "value": pa.float64()}).empty_table()]
    for host in telemetry:
        series_texts = {"host": [host.host] * len(host.series)}
        series_texts |= {name: [getattr(series, name) for series in host.series] for name in Series._fields}
        columns = {}
        for name, texts in series_texts.items():  # done without Arrow's `take`, whose import takes 30 ms
            indices = {text: index for index, text in enumerate(dict.fromkeys(texts))}
            index_of_row = np.array([indices[text] for text in texts], np.int32)[host.which]
            columns[name] = pa.DictionaryArray.from_arrays(index_of_row, pa.array(indices, pa.string()))
        tables.append(pa.table({"time_ns": host.time_ns, **columns, "value": host.value}))
    counts = msgspec.json.encode([len(host.value) for host in telemetry])
    return pa.concat_tables(tables).unify_dictionaries().replace_schema_metadata({_ROW_COUNTS_KEY: counts})


def from_tables(heads: Sequence[RecorderHead], readings: pa.Table) -> Telemetry:
    """Return the telemetry with these heads and readings; `heads` must be in the order of the hosts in `to_table`."""
    hosts = []
    start = 0
    counts = msgspec.json.decode((readings.schema.metadata or {})[_ROW_COUNTS_KEY], type=list[int])
    for head, count in zip(heads, counts, strict=True):
        rows = readings.slice(start, count)
        start += count
        keys = list(zip(*(rows[name].to_pylist() for name in Series._fields), strict=True))
        series = tuple(map(Series._make, dict.fromkeys(keys)))
        indices: dict[tuple[str, ...], int] = {key: index for index, key in enumerate(series)}
        which = np.array([indices[key] for key in keys], np.int32)
        times_ns = rows["time_ns"].to_numpy()
        values = rows["value"].to_numpy()
        hosts.append(HostTelemetry(**vars(head), series=series, which=which, time_ns=times_ns, value=values))
    return tuple(hosts)


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the log after the head: new series, the readings of one probe at one moment, a note, or CPU time."""

    series: tuple[Series, ...] = ()  # new series; all series are numbered from 0, in the order of the log
    t: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0  # time of the readings, CLOCK_MONOTONIC in ns
    i: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()  # series number of each reading
    v: tuple[float, ...] = ()  # value of each reading
    note: str | None = None  # for the reader of the result
    cpu_seconds: float = 0.0  # CPU time of the recorder itself so far


class LogWriter:
    """Appends lines to a file; each call is a single write, so that only the last line can be incomplete."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._numbers: dict[Series, int] = {}

    def write(self, *lines: RecorderHead | LogLine) -> None:
        """Append lines; raises SpaceError when the disk is full."""
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if os.write(self._descriptor, data) < len(data):
            raise SpaceError("the disk of the telemetry log is full")  # nothing may follow an incomplete line

    def add(self, probe: str, now_ns: int, readings: Iterable[Reading]) -> None:
        """Write the readings of one probe at one moment, except NaN and infinity, which JSON lacks."""
        finite = [reading for reading in readings if math.isfinite(reading.value)]
        keys = [Series(probe, reading.source, reading.metric) for reading in finite]
        new_series = tuple(dict.fromkeys(series for series in keys if series not in self._numbers))
        for series in new_series:
            self._numbers[series] = len(self._numbers)
        if finite:
            numbers = tuple(self._numbers[series] for series in keys)
            new_lines = [LogLine(series=new_series)] if new_series else []
            values = tuple(round(reading.value, 6) for reading in finite)
            self.write(*new_lines, LogLine(t=now_ns, i=numbers, v=values))


def log_path(folder: str, node: int) -> str:
    """Return the path of a node's log in a run's live folder."""
    return os.path.join(folder, f"{_PREFIX}{node:05d}.jsonl")


def read_logs(folder: str) -> Telemetry:
    """Return the telemetry in the logs of a failed run's live folder."""
    hosts = []
    for name in sorted(name for name in os.listdir(folder) if name.startswith(_PREFIX)):
        with open(os.path.join(folder, name), "rb") as log:
            hosts.append(parse_log(log.read()))
    return tuple(host for host in hosts if host is not None)


def parse_log(data: bytes) -> HostTelemetry | None:
    """Return the telemetry in a log up to the first incomplete or damaged line; None if the head is not valid."""
    head_text, *texts = data[: data.rfind(b"\n") + 1].splitlines() or [b""]
    try:
        head = msgspec.json.decode(head_text, type=RecorderHead)
    except msgspec.DecodeError:
        return None
    lines: list[LogLine] = []
    series: list[Series] = []
    damage: list[str] = []
    decoder = msgspec.json.Decoder(LogLine)
    for number, text in enumerate(texts, 2):
        try:
            line = decoder.decode(text)
            is_damaged = len(line.i) != len(line.v) or max(line.i, default=-1) >= len(series)
        except msgspec.DecodeError:
            is_damaged = True
        if is_damaged:  # later lines may refer to series that this one would have defined
            damage.append(f"the telemetry of {head.host} is damaged in line {number}: the rest is left out")
            break
        lines.append(line)
        series += line.series
    notes = dict.fromkeys([*head.notes, *(line.note for line in lines if line.note is not None), *damage])
    cpu_seconds = max([head.cpu_seconds, *(line.cpu_seconds for line in lines)])
    return HostTelemetry(
        **(vars(head) | {"notes": tuple(notes), "cpu_seconds": cpu_seconds}),
        series=tuple(series),
        which=np.array([number for line in lines for number in line.i], np.int32),
        time_ns=np.array([line.t for line in lines for _ in line.i], np.int64),
        value=np.array([value for line in lines for value in line.v], np.float64),
    )
