"""The block trace: every request of the dataset's devices, on request (`telemetry.block_trace=true`) and as root.

Its histograms are about training: they begin and end with each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.telemetry._devices import behind, mounts
from dlemu.telemetry._requests import Requests
from dlemu.telemetry._tracefs import Trace
from dlemu.telemetry.probe_base import AbsentError, Description, ProbeBase, Reading, Scope


class Probe(ProbeBase):
    """Devices that have requests of their own: md and most of dm pass on what they get."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        if not scope.block_trace:
            raise AbsentError("")
        numbers = _device_numbers(scope)
        if not numbers:
            raise AbsentError("telemetry.block_trace: no block device is behind the dataset's folder")
        self._requests = Requests({number.replace(":", ",").encode(): name for number, name in numbers.items()})
        self._trace = Trace(numbers, scope.sys)

    def describe(self) -> Description:
        """Return the histograms so far, and what is wrong with them."""
        lost = self._trace.lost_events()
        notes = (f"telemetry.block_trace: {lost} events were lost, the histograms lack them",) if lost else ()
        return Description(notes=notes, trace=tuple(self._requests.bins()))

    def train(self, training: bool, now_ns: int) -> None:
        """Begin or end to count."""
        self._requests.add(self._trace.lines())
        self._requests.count(training, now_ns // 1000)

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Fetch the events; return the mean depths since the last reading."""
        self._requests.add(self._trace.lines())
        for device, operation, depth in self._requests.mean_depths(now_ns // 1000):
            yield Reading(device, f"queue_depth_{operation}", depth)

    def close(self) -> None:
        """Remove the trace from the kernel."""
        self._trace.close()


def _device_numbers(scope: Scope) -> dict[str, str]:
    """Return the name of each device under the folders by its number; requests are those of whole disks."""
    table = mounts(scope.proc)
    found = {}
    for folder in scope.folders:
        for device in behind(folder, table, scope.sys).devices:
            if device.kind != "partition":
                with open(f"{scope.sys}/class/block/{device.name}/dev") as line:
                    found[line.read().strip()] = device.name
    return found
