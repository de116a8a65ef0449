"""What every probe does, and what a run's telemetry is once it was read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from dlemu.telemetry._requests import Bin

NS_PER_SECOND = 1_000_000_000


class AbsentError(DlemuError):
    """There is nothing on this host for a probe to read; the message says what is missing."""


class Reading(NamedTuple):
    """One value at one moment; the metric's name has the unit."""

    source: str
    """Device, interface or rank; empty for the whole host."""
    metric: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What the probes of a host look at."""

    folders: tuple[str, ...] = ()
    """Where the dataset lies: its folder, and those below it that may be mounts of their own."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Process id of each rank on this host."""
    block_trace: bool = False
    """Trace every request of the devices."""
    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What the dataset lies on, as a probe found it. None where the probe does not tell."""

    probe: str
    """Who reads its counters: block, filesystem."""
    name: str
    """The `source` of its readings."""
    kind: str
    below: tuple[str, ...] = ()
    """Names of the devices it is made of."""
    counted: bool
    """Its bytes are the dataset's; of containers on one machine, which see the same devices, the first one's alone."""
    size_bytes: int | None = None
    model: str | None = None
    rotational: bool | None = None
    scheduler: str | None = None
    read_ahead_bytes: int | None = None
    largest_request_bytes: int | None = None
    requests_counted: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a probe says once about what it found."""

    devices: tuple[dict[str, Any], ...] = ()
    """What the dataset lies on; `name` is the readings' source, `counted` says that its bytes are the dataset's."""
    notes: tuple[str, ...] = ()
    """Sentences for the reader of the result."""
    trace: tuple[Bin, ...] = ()
    """Histograms of the block trace so far."""


class ProbeBase:
    """Reads one kind of counters of this host. Made and used in the recorder's process.

    A probe's file has a class `Probe` that derives from this. `Probe(scope)` raises AbsentError when the host has
    nothing of the kind, without a message when nobody would expect it to have.
    """

    exact: ClassVar[bool] = False
    """Read also where epochs begin and end, and never less often: what it counts is published for each epoch."""

    def __init__(self, scope: Scope) -> None:
        """Find out what there is to read."""

    def describe(self) -> Description:
        """Say what was found; an exact probe is asked again at the end of each epoch."""
        return Description()

    def train(self, training: bool, now_ns: int) -> None:
        """Hear that an epoch's training begins or ended; only exact probes are told."""

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read everything now. Rates are those since the last call, so the first call has none."""
        raise NotImplementedError  # each probe has its own; the other methods may stay as they are

    def close(self) -> None:
        """Leave nothing behind in the kernel."""


class Rates:
    """Turns counters into rates: the change since the last reading, by the time between."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, tuple[float, ...]]] = {}

    def since_last(self, source: str, now_ns: int, counters: Sequence[float]) -> tuple[float, list[float]] | None:
        """Return the seconds since the source's last reading and each counter's growth; None the first time.

        A counter that went back (a device that came anew) makes the interval void.
        """
        then = self._before.get(source)
        self._before[source] = now_ns, tuple(counters)
        if then is None or now_ns <= then[0]:
            return None
        grown = [now - before for now, before in zip(counters, then[1], strict=True)]
        return None if min(grown, default=0) < 0 else ((now_ns - then[0]) / NS_PER_SECOND, grown)


class Series(NamedTuple):
    """What one column of readings is about."""

    probe: str
    source: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class HostTelemetry:
    """What one host's recorder wrote; reading i is `value[i]` of `series[which[i]]` at `time_ns[i]`."""

    host: str
    node: int
    boot_id: str
    """The kernel's: two nodes with the same one are one machine and see the same devices."""
    interval_seconds: float
    probes: tuple[str, ...]
    devices: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    trace: tuple[Bin, ...] = ()
    """Histograms of the block trace, where one was asked for."""
    cpu_seconds: float
    """What the recorder itself had used at its last word."""
    seconds: float
    """From its first to its last word."""
    series: tuple[Series, ...]
    which: NDArray[np.int32]
    time_ns: NDArray[np.int64]
    """CLOCK_MONOTONIC of the host."""
    value: NDArray[np.float64]

    def readings(self, probe: str, source: str, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the times and values of one series in order; empty ones when there is none."""
        wanted = Series(probe, source, metric)
        kept = self.which == (self.series.index(wanted) if wanted in self.series else -1)
        return self.time_ns[kept], self.value[kept]

    def sources(self, probe: str) -> list[str]:
        """Return what the probe read: device names, interfaces, ranks."""
        return sorted({series.source for series in self.series if series.probe == probe})


Telemetry = tuple[HostTelemetry, ...]
"""A run's telemetry, one entry a host in node order; empty when none was recorded."""
