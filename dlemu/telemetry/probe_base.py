"""What every probe does, and what it says of what it reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from datagen.errors import DlemuError

NS_PER_SECOND = 1_000_000_000
COST_SHARE = 0.005
"""Maximum share of a core that reading a probe may take on average: a costlier one is read less often."""
_READ_BYTES = 1 << 18  # more than /proc/stat of a thousand cores; one pread, so all lines are of one moment


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
    cpu_groups: tuple[str, ...] = ()
    """Folders of the control groups that limit the CPU time of this host's ranks."""
    request_folder: str = ""
    """Where processes count their requests to an object store; empty: there is none."""
    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What the dataset is on, as a probe found it. None where the probe can't find out."""

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


class Bin(NamedTuple):
    """A bin of a histogram of the block trace, [low, high)."""

    device: str
    operation: str
    kind: str
    """queue_depth_seconds, latency_us or request_kib."""
    low: float
    high: float
    weight: float
    """Seconds at that depth, or requests."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a probe reads and what is to be known of it."""

    devices: tuple[DeviceFacts, ...] = ()
    """What the dataset is on."""
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
    """Read also where epochs begin and end, and at every interval: what it counts is published for each epoch.

    An exact probe that is costly (COST_SHARE) skips readings by itself, but none where epochs begin and end.
    """

    def __init__(self, scope: Scope) -> None:
        """Find out what there is to read."""

    def describe(self) -> Description:
        """Describe what there is to read; an exact probe is read again at the end of each epoch."""
        return Description()

    def train(self, training: bool, now_ns: int) -> None:
        """Note that an epoch's training begins or ended; called for exact probes alone."""

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read everything now. Rates are those since the last call, so the first call has none."""
        raise NotImplementedError  # each probe has its own; the other methods may stay as they are

    def close(self) -> None:
        """Leave nothing behind in the kernel."""


class Counters:
    """A file of /proc or /sys that stays open and is read again and again: one pread a reading."""

    def __init__(self, path: str) -> None:
        """Open it; AbsentError when this host or kernel has none, or lets us not read it."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.pread(self._descriptor, 1, 0)
        except OSError as error:
            raise AbsentError(f"telemetry: {path} can't be read: {error.strerror}") from error

    def text(self) -> str:
        """Return its content now."""
        return os.pread(self._descriptor, _READ_BYTES, 0).decode(errors="replace")


class Rates:
    """Turns counters into rates: the change since the last reading, by the time between."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, tuple[float, ...]]] = {}

    def since_last(self, source: str, now_ns: int, counters: Sequence[float]) -> tuple[float, list[float]] | None:
        """Return the seconds since the source's last reading and each counter's growth; None the first time.

        A counter that went back (a device that came again) makes the interval void.
        """
        then = self._before.get(source)
        self._before[source] = now_ns, tuple(counters)
        if then is None or now_ns <= then[0]:
            return None
        grown = [now - before for now, before in zip(counters, then[1], strict=True)]
        return None if min(grown, default=0) < 0 else ((now_ns - then[0]) / NS_PER_SECOND, grown)
