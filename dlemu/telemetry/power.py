"""Power in watts of all meters: processor packages (RAPL), and other sensors such as those of drives (hwmon).

RAPL counts microjoules (https://docs.kernel.org/power/powercap/powercap.html), for root only; no reading is made in the
interval of a wrap. hwmon's `power*` is in microwatts (https://docs.kernel.org/hwmon/sysfs-interface.html).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator

from dlemu.telemetry.probe_base import AbsentError, Counters, ProbeBase, Rates, Reading, Scope, read_text, readings


class Probe(ProbeBase):
    """Reads every readable meter. Meters overlap (a node's power includes its packages'), so don't add them up."""

    def __init__(self, scope: Scope) -> None:
        self._domains, self._sensors, self._rates = dict(_rapl(scope.sys)), dict(_hwmon(scope.sys)), Rates()
        if not self._domains and not self._sensors:
            raise AbsentError("")  # no note: many hosts have no readable meter

    def read(self, now_ns: int) -> Iterator[Reading]:
        for name, counter in self._domains.items():
            joules = int(counter.text()) / 1e6
            yield from readings(name, self._rates.per_second(name, now_ns, {"watts": joules}))  # J/s
        for name, sensor in self._sensors.items():
            yield Reading(name, "watts", int(sensor.text()) / 1e6)


def _rapl(sys: str) -> Iterator[tuple[str, Counters]]:
    """Yield (name, energy counter) of each RAPL domain; names are such as package-0 and package-0/dram."""
    for folder in sorted(glob.glob(f"{sys}/class/powercap/*-rapl:*")):
        name, parent = read_text(f"{folder}/name"), folder.rpartition(":")[0]
        if os.path.exists(f"{parent}/name"):
            name = f"{read_text(f'{parent}/name')}/{name}"
        with contextlib.suppress(AbsentError):
            yield name, Counters(f"{folder}/energy_uj")


def _hwmon(sys: str) -> Iterator[tuple[str, Counters]]:
    """Yield (name, file) of each power sensor; names are such as `hwmon2 nvme power1`."""
    for path in sorted(glob.glob(f"{sys}/class/hwmon/hwmon*/power*_[ia]*")):
        folder, sensor = os.path.split(path)
        number, _, kind = sensor.partition("_")
        if kind not in ("input", "average") or (kind == "average" and os.path.exists(f"{folder}/{number}_input")):
            continue
        with contextlib.suppress(AbsentError):
            name = read_text(f"{folder}/{number}_label") or number
            yield f"{os.path.basename(folder)} {read_text(f'{folder}/name')} {name}", Counters(path)
