"""The telemetry of a run: in memory (`HostTelemetry`), and as the Arrow tables that are saved in the run's folder.

A host's telemetry consists of its head (`RecorderHead`, small, typed) and its readings (`to_table`); `from_tables`
combines the two again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlemu.telemetry.probe_base import DeviceFacts

if TYPE_CHECKING:  # not imported in ranks, which do not need Arrow
    import pyarrow as pa

_ROW_COUNTS_KEY = b"readings_per_host"
"""Key of the table's metadata: number of rows of each host, in order, because two hosts may have the same name."""


class Series(NamedTuple):
    """Identifies a time series: one metric of one source, read by one probe."""

    probe: str
    source: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class RecorderHead:
    """A host's telemetry without its readings."""

    host: str
    node: int
    boot_id: str
    """The kernel's boot id: nodes (containers) with the same one share a machine and its devices."""
    interval_seconds: float
    probes: tuple[str, ...]
    devices: tuple[DeviceFacts, ...]
    notes: tuple[str, ...]
    cpu_seconds: float = 0.0
    """CPU time of the recorder itself until the last line of its log."""
    seconds: float = 0.0
    """Time from the first to the last line of the recorder's log."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostTelemetry(RecorderHead):
    """All telemetry of one host; reading i is `value[i]` of `series[which[i]]` at `time_ns[i]`."""

    series: tuple[Series, ...]
    """The series in the order of their first readings."""
    which: NDArray[np.int32]
    time_ns: NDArray[np.int64]
    """CLOCK_MONOTONIC of the host."""
    value: NDArray[np.float64]

    @property
    def head(self) -> RecorderHead:
        """The telemetry without readings."""
        return RecorderHead(**{part.name: getattr(self, part.name) for part in fields(RecorderHead)})

    def readings(self, probe: str, source: str, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the times and values of one series in order; both are empty if there is no such series."""
        series_key = Series(probe, source, metric)
        kept = self.which == (self.series.index(series_key) if series_key in self.series else -1)
        return self.time_ns[kept], self.value[kept]

    def sources(self, probe: str) -> list[str]:
        """Return the sources that a probe read: device names, interfaces, or ranks."""
        return sorted({series.source for series in self.series if series.probe == probe})


Telemetry = tuple[HostTelemetry, ...]
"""A run's telemetry, one entry per host in node order; empty if none was recorded."""


def to_table(telemetry: Telemetry) -> pa.Table:
    """Return a table with a row per reading, host by host: time_ns, host, probe, source, metric, value."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    types = {"time_ns": pa.int64(), "host": word, "probe": word, "source": word, "metric": word, "value": pa.float64()}
    counts = msgspec.json.encode([len(host.value) for host in telemetry])
    parts = [pa.schema(types).empty_table()]
    for host in telemetry:
        words = {"host": [host.host] * len(host.series)}
        words |= {name: [getattr(series, name) for series in host.series] for name in Series._fields}
        columns = {}
        for name, texts in words.items():  # Arrow's `take` would do, but that imports 30 ms of functions
            places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
            indices = np.array([places[text] for text in texts], np.int32)[host.which]
            columns[name] = pa.DictionaryArray.from_arrays(indices, pa.array(places, pa.string()))
        parts.append(pa.table({"time_ns": host.time_ns, **columns, "value": host.value}))
    return pa.concat_tables(parts).unify_dictionaries().replace_schema_metadata({_ROW_COUNTS_KEY: counts})


def from_tables(heads: Sequence[RecorderHead], readings: pa.Table) -> Telemetry:
    """Combine heads and readings again; `heads` in the order that `to_table` was given."""
    hosts, start = [], 0
    counts = msgspec.json.decode((readings.schema.metadata or {})[_ROW_COUNTS_KEY], type=list[int])
    for head, count in zip(heads, counts, strict=True):
        rows = readings.slice(start, count)
        start += count
        series, which = _series(rows)
        hosts.append(
            HostTelemetry(
                **vars(head),
                series=series,
                which=which,
                time_ns=rows["time_ns"].to_numpy(),
                value=rows["value"].to_numpy(),
            )
        )
    return tuple(hosts)


def _series(rows: pa.Table) -> tuple[tuple[Series, ...], NDArray[np.int32]]:
    """Return the series of one host's rows, by first appearance, and for each row the index of its series."""
    import pyarrow as pa

    combined = np.zeros(len(rows), np.int64)
    for name in Series._fields:
        column = rows[name].cast(pa.string()).combine_chunks().dictionary_encode()
        combined = combined * (len(column.dictionary) + 1) + column.indices.to_numpy()
    _, first, which = np.unique(combined, return_index=True, return_inverse=True)
    order = np.argsort(first)
    positions = np.empty(len(order), np.int32)
    positions[order] = np.arange(len(order), dtype=np.int32)
    heads = rows.select(Series._fields).take(first[order]).to_pylist()
    return tuple(Series(**names) for names in heads), positions[which]
