"""How hot drives are, and from where on they call it too hot, by the kernel's sensors (hwmon).

NVMe drives (driver `nvme`: `temp1_input` is the composite temperature, `temp1_max` the drive's own warning threshold)
and those of SATA (`drivetemp`, https://docs.kernel.org/hwmon/drivetemp.html); in thousandths of a degree
(https://docs.kernel.org/hwmon/sysfs-interface.html). A drive that is too hot slows itself down.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator

from dlemu.telemetry.probe_base import AbsentError, Counters, ProbeBase, Reading, Scope

_DRIVERS = ("nvme", "drivetemp")


class Probe(ProbeBase):
    """Every drive of this host that reports it; named as its device or, for NVMe, its controller."""

    def __init__(self, scope: Scope) -> None:
        self._sensors: dict[str, Counters] = {}
        self._limits: dict[str, float] = {}
        for folder in sorted(glob.glob(f"{scope.sys}/class/hwmon/hwmon*")):
            if _text(f"{folder}/name") in _DRIVERS and os.access(f"{folder}/temp1_input", os.R_OK):
                name = _drive(folder)
                self._sensors[name] = Counters(f"{folder}/temp1_input")
                with contextlib.suppress(ValueError):
                    self._limits[name] = int(_text(f"{folder}/temp1_max")) / 1e3
        if not self._sensors:
            raise AbsentError("")

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read each drive."""
        for name, sensor in self._sensors.items():
            yield Reading(name, "celsius", int(sensor.text()) / 1e3)
            if name in self._limits:
                yield Reading(name, "limit_celsius", self._limits[name])


def _drive(folder: str) -> str:
    """Return the block device of a SATA drive, or the NVMe controller."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(f"{folder}/device/block"))[0]
    return os.path.basename(os.path.realpath(f"{folder}/device"))


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as lines:
        return lines.read().strip()
    return ""
