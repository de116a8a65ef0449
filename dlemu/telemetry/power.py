"""Power in watts from all meters found: processor packages (RAPL) and other sensors, such as drives' (hwmon).

RAPL counts microjoules and wraps at `max_energy_range_uj` (https://docs.kernel.org/power/powercap/powercap.html); only
root may read it. The `power*` files of hwmon are in microwatts (https://docs.kernel.org/hwmon/sysfs-interface.html).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterator

from dlemu.telemetry.probe_base import NS_PER_SECOND, AbsentError, Counters, ProbeBase, Reading, Scope, read_text

_Meter = Callable[[int], float | None]
"""Takes the time in ns; returns the current watts, or for RAPL the mean since the last call (None at the first)."""


class Probe(ProbeBase):
    """Reads every readable meter. They overlap (a node's power includes its packages'): don't add them up."""

    def __init__(self, scope: Scope) -> None:
        self._meters: dict[str, _Meter] = dict((*_rapl(scope.sys), *_hwmon(scope.sys)))
        if not self._meters:
            raise AbsentError("")

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read each meter."""
        for source, meter in self._meters.items():
            watts = meter(now_ns)
            if watts is not None:
                yield Reading(source, "watts", watts)


class _RaplMeter:
    """A RAPL domain: an energy counter, read as mean power."""

    def __init__(self, folder: str) -> None:
        self._counter = Counters(f"{folder}/energy_uj")
        self._range_uj = int(read_text(f"{folder}/max_energy_range_uj") or 0)
        self._before: tuple[int, int] | None = None

    def __call__(self, now_ns: int) -> float | None:
        before, self._before = self._before, (now_ns, int(self._counter.text()))
        if before is None or now_ns <= before[0]:
            return None
        growth_uj = self._before[1] - before[1]
        if growth_uj < 0:
            growth_uj += self._range_uj
        return max(0, growth_uj) / 1e6 / ((now_ns - before[0]) / NS_PER_SECOND)


def _rapl(sys: str) -> Iterator[tuple[str, _Meter]]:
    """Yield the name, such as package-0 or package-0/dram, and the meter of each RAPL domain."""
    for folder in sorted(glob.glob(f"{sys}/class/powercap/*-rapl:*")):
        name, parent = read_text(f"{folder}/name"), folder.rpartition(":")[0]
        if os.path.exists(f"{parent}/name"):
            name = f"{read_text(f'{parent}/name')}/{name}"
        with contextlib.suppress(AbsentError):
            yield name, _RaplMeter(folder)


def _hwmon(sys: str) -> Iterator[tuple[str, _Meter]]:
    """Yield the name, such as `hwmon2 nvme power1`, and the meter of each power sensor."""
    for path in sorted(glob.glob(f"{sys}/class/hwmon/hwmon*/power*_[ia]*")):
        folder, sensor = os.path.split(path)
        number, _, kind = sensor.partition("_")
        if kind not in ("input", "average") or (kind == "average" and os.path.exists(f"{folder}/{number}_input")):
            continue
        with contextlib.suppress(AbsentError):
            name = read_text(f"{folder}/{number}_label") or number
            yield f"{os.path.basename(folder)} {read_text(f'{folder}/name')} {name}", _hwmon_meter(Counters(path))


def _hwmon_meter(counters: Counters) -> _Meter:
    return lambda now_ns: int(counters.text()) / 1e6
