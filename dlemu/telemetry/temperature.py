"""Temperatures of drives, which throttle when hot, and their warning thresholds, from the kernel's sensors (hwmon).

NVMe drives (driver `nvme`): `temp1_input` is the composite temperature, `temp1_max` the drive's own warning threshold.
SATA drives (driver `drivetemp`): https://docs.kernel.org/hwmon/drivetemp.html. Both are in thousandths of a degree
Celsius (https://docs.kernel.org/hwmon/sysfs-interface.html).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator

from dlemu.telemetry.probe_base import AbsentError, Counters, ProbeBase, Reading, Scope, read_text

_DRIVERS = ("nvme", "drivetemp")


class Probe(ProbeBase):
    """Reads every drive with a sensor. The source of a reading is the block device or, for NVMe, the controller."""

    def __init__(self, scope: Scope) -> None:
        self._sensors: dict[str, Counters] = {}
        self._limits: list[Reading] = []
        for folder in sorted(glob.glob(f"{scope.sys}/class/hwmon/hwmon*")):
            if read_text(f"{folder}/name") in _DRIVERS and os.access(f"{folder}/temp1_input", os.R_OK):
                name = _drive_name(folder)
                self._sensors[name] = Counters(f"{folder}/temp1_input")
                if limit := read_text(f"{folder}/temp1_max"):
                    self._limits.append(Reading(name, "limit_celsius", int(limit) / 1e3))
        if not self._sensors:
            raise AbsentError("")  # no note: without sensors, as in many virtual machines, nothing is wrong

    def read(self, now_ns: int) -> Iterator[Reading]:
        for name, sensor in self._sensors.items():
            yield Reading(name, "celsius", int(sensor.text()) / 1e3)
        yield from self._limits


def _drive_name(folder: str) -> str:
    """Return the name of a SATA drive's block device (sda), or of an NVMe controller (nvme0)."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(f"{folder}/device/block"))[0]
    return os.path.basename(os.path.realpath(f"{folder}/device"))
