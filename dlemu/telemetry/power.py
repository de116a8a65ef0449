"""Power in watts, from whatever meters there are: NVIDIA's GPUs (NVML), processor packages (RAPL), sensors (hwmon).

RAPL counts microjoules and wraps at `max_energy_range_uj` (https://docs.kernel.org/power/powercap/powercap.html; only
root may read it); hwmon's `power*` are in microwatts (https://docs.kernel.org/hwmon/sysfs-interface.html).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterator
from typing import Any

from dlemu.telemetry.probe_base import NS_PER_SECOND, AbsentError, Counters, ProbeBase, Reading, Scope

_Meter = Callable[[int], float | None]
"""Takes the time and returns the watts: of the moment, or the mean since the last call; None when it can't say yet."""


class Probe(ProbeBase):
    """Every meter that can be read. They overlap (a package's energy is part of the node's): don't add them up."""

    def __init__(self, scope: Scope) -> None:
        self._meters: dict[str, _Meter] = dict((*_nvml(), *_rapl(scope.sys), *_hwmon(scope.sys)))
        if not self._meters:
            raise AbsentError("")

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read each meter."""
        for source, meter in self._meters.items():
            watts = meter(now_ns)
            if watts is not None:
                yield Reading(source, "watts", watts)


class _Energy:
    """A counter of microjoules."""

    def __init__(self, folder: str) -> None:
        self._counter = Counters(f"{folder}/energy_uj")
        self._range_uj = int(_text(f"{folder}/max_energy_range_uj") or 0)
        self._before: tuple[int, int] | None = None

    def __call__(self, now_ns: int) -> float | None:
        before, self._before = self._before, (now_ns, int(self._counter.text()))
        if before is None or now_ns <= before[0]:
            return None
        grown_uj = self._before[1] - before[1]
        if grown_uj < 0:
            grown_uj += self._range_uj
        return max(0, grown_uj) / 1e6 / ((now_ns - before[0]) / NS_PER_SECOND)


def _rapl(sys: str) -> Iterator[tuple[str, _Meter]]:
    """Yield a meter for each domain, named after its place: package-0, package-0/dram."""
    for folder in sorted(glob.glob(f"{sys}/class/powercap/*-rapl:*")):
        name, above = _text(f"{folder}/name"), folder.rpartition(":")[0]
        if os.path.exists(f"{above}/name"):
            name = f"{_text(f'{above}/name')}/{name}"
        with contextlib.suppress(AbsentError):
            yield name, _Energy(folder)


def _hwmon(sys: str) -> Iterator[tuple[str, _Meter]]:
    """Yield a meter for each power sensor: hwmon2 nvme, hwmon0 power_meter."""
    for path in sorted(glob.glob(f"{sys}/class/hwmon/hwmon*/power*_[ia]*")):
        folder, sensor = os.path.split(path)
        number, _, kind = sensor.partition("_")
        if kind not in ("input", "average") or (kind == "average" and os.path.exists(f"{folder}/{number}_input")):
            continue
        with contextlib.suppress(AbsentError):
            name = _text(f"{folder}/{number}_label") or number
            yield f"{os.path.basename(folder)} {_text(f'{folder}/name')} {name}", _sensor(Counters(path))


def _sensor(counters: Counters) -> _Meter:
    return lambda now_ns: int(counters.text()) / 1e6


def _nvml() -> Iterator[tuple[str, _Meter]]:
    """Yield a meter for each NVIDIA GPU; none without the package nvidia-ml-py or without a driver."""
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceGetPowerUsage(handle)
            yield f"gpu {index} {pynvml.nvmlDeviceGetName(handle)}", _gpu(pynvml, handle)
    except pynvml.NVMLError:
        return


def _gpu(pynvml: Any, handle: Any) -> _Meter:
    return lambda now_ns: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3  # milliwatts


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as lines:
        return lines.read().strip()
    return ""
