"""An emulated accelerator: the host sleeps for the time that a real accelerator would compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.accelerators.accelerator_base import AcceleratorSpec, Phase, draw_ns
from dlemu.machine.clock import Clock


class Accelerator:
    """The `sleep` accelerator. A step takes exactly its nominal time, however late the host wakes."""

    def __init__(self, spec: AcceleratorSpec, clock: Clock) -> None:
        self._spec, self._clock = spec, clock

    @classmethod
    def check_host(cls, spec: AcceleratorSpec) -> None:
        """Do nothing: every host can sleep."""

    def draw_compute_ns(self, phase: Phase, epoch: int, steps: int) -> NDArray[np.int64]:
        """Return the nominal time of each step; evaluation (epochs below 0) draws random numbers of its own."""
        if phase == "valid":
            return draw_ns(self._spec.eval_time, self._spec, -epoch, steps)
        return draw_ns(self._spec.computation_time, self._spec, epoch, steps)

    def start(self, data: Any, begin_ns: int, compute_ns: int) -> int:
        """Return the step's end, which is known from the start."""
        return begin_ns + compute_ns

    def finish(self, end_ns: int) -> int:
        """Sleep until the step's end."""
        self._clock.sleep_until(end_ns)
        return end_ns
