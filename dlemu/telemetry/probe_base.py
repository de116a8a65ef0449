"""The interface of telemetry probes: base class, input (`Scope`), output (`Reading`, `DeviceFacts`), and helpers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from datagen.errors import DlemuError

NS_PER_SECOND = 1_000_000_000
COST_SHARE = 0.005  # maximum mean CPU use of one probe, as a share of a core; costlier probes are read less often
_READ_BYTES = 1 << 18  # more than /proc/stat of 1000 cores has; a file with a record per item returns a page per pread


class AbsentError(DlemuError):
    """This host lacks the counters of a probe; the message says what is missing, or is empty if that is normal."""


class Reading(NamedTuple):
    """One value of a metric, whose name ends with its unit, such as `watts` or `read_mb_per_second`."""

    source: str
    """Name of the device, interface or rank; empty for the whole host."""
    metric: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The input of a host's probes: what to measure, how often, and where the kernel's files are."""

    node: int = 0
    """The host's number in the run."""
    interval_seconds: float = 0.5
    folders: tuple[str, ...] = ()
    """The dataset's folder, and its subfolders that may be separate mounts."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Process id of each rank on this host."""
    cpu_groups: tuple[str, ...] = ()
    """Folders of the cgroups that limit the CPU time of this host's ranks."""
    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """A device or network mount that holds the dataset. A property is None if the probe can't determine it."""

    probe: str
    """The probe that reads its counters: block or filesystem."""
    name: str
    """The `source` of its readings."""
    kind: str
    below: tuple[str, ...] = ()
    """Names of the devices that it is built on."""
    counted: bool
    """Whether its traffic counts as the dataset's. If several containers see a device, only the first counts it."""
    size_bytes: int | None = None
    model: str | None = None
    read_ahead_bytes: int | None = None
    requests_counted: bool | None = None


class ProbeBase:
    """Reads one kind of counters of this host; created and used in the recorder process.

    Each probe module has a class `Probe` derived from this one, whose constructor raises AbsentError if the host has no
    such counters.
    """

    exact: ClassVar[bool] = False
    """Whether its figures are reported per epoch: it is then read at each interval, and when an epoch begins or ends.

    A costly exact probe must itself skip readings to stay below COST_SHARE, except when an epoch begins or ends.
    """

    devices: tuple[DeviceFacts, ...] = ()
    """Devices or network mounts that hold the dataset; set by the constructor, as `notes` is."""
    notes: tuple[str, ...] = ()
    """Remarks shown to the user with the result."""

    def __init__(self, scope: Scope) -> None:
        """Find the counters and open their files; raises AbsentError."""

    def mark(self, now_ns: int) -> None:
        """Called before the reading at the beginning or the end of an epoch's training; only for exact probes."""

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Yield all readings. Rates are means since the last call; the first call yields none."""
        raise NotImplementedError  # every probe must override this method


def read_text(path: str) -> str:
    """Return a file's content, stripped; empty if it can't be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as lines:
        return lines.read().strip()
    return ""


class Counters:
    """A file of /proc or /sys that stays open."""

    def __init__(self, path: str) -> None:
        """Open the file; raise AbsentError if it does not exist or can't be read."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            self.text()
        except OSError as error:
            raise AbsentError(f"telemetry: {path} can't be read: {error.strerror}") from error

    def text(self) -> str:
        """Return the current content."""
        data = b""
        while part := os.pread(self._descriptor, _READ_BYTES, len(data)):
            data += part
        return data.decode(errors="replace")


class Rates:
    """Computes the rates of counters from their last and their current values."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, dict[str, float]]] = {}

    def per_second(self, source: str, now_ns: int, counters: Mapping[str, float]) -> dict[str, float]:
        """Return each counter's growth per second since the source's last reading, by the counter's name.

        Empty for the first reading, or if a counter decreased because it wrapped or its device was re-added.
        """
        last_ns, last_counters = self._last.get(source, (now_ns, {}))
        self._last[source] = now_ns, dict(counters)
        if now_ns <= last_ns or last_counters.keys() != counters.keys():
            return {}
        seconds = (now_ns - last_ns) / NS_PER_SECOND
        rates = {name: (counter - last_counters[name]) / seconds for name, counter in counters.items()}
        return rates if min(rates.values(), default=0) >= 0 else {}


def readings(source: str, values: Mapping[str, float]) -> Iterator[Reading]:
    """Yield a reading for each metric of a source."""
    return (Reading(source, metric, value) for metric, value in values.items())
