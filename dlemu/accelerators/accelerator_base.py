"""The interface of an accelerator: it draws the durations of its steps, starts a step, and waits for its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dlemu.config.duration import draw_seconds
from dlemu.config.schema import Duration
from dlemu.machine.clock import Clock

Phase = Literal["train", "valid", "ceiling"]


@dataclass(frozen=True, kw_only=True)
class AcceleratorSpec:
    """What an accelerator is constructed with. It is picklable."""

    rank: int
    seed: int  # of random durations
    computation_time: Duration  # of a step in training, and in the measurement of the emulator's ceiling
    eval_time: Duration  # of a step in evaluation


class Accelerator(Protocol):
    """A rank's accelerator, constructed in the rank's process by the thread that runs the training loop."""

    def __init__(self, spec: AcceleratorSpec, clock: Clock) -> None: ...

    @classmethod
    def check_host(cls, spec: AcceleratorSpec) -> None:
        """Raise UserError if this host can't run the accelerator; called once per host before the run."""

    def draw_compute_ns(self, phase: Phase, epoch: int, steps: int) -> NDArray[np.int64]:
        """Return each step's nominal time (ns), shape (steps,); `epoch` counts from 1, and is 0 for the ceiling."""

    def start(self, data: Any, begin_ns: int, compute_ns: int) -> int:
        """Start a step at `begin_ns` on the batch `data`, of the loader's own type; return its expected end in ns."""

    def finish(self, end_ns: int) -> int:
        """Wait for the end of the step, and return when it ended on the accelerator's own timeline, in ns.

        `end_ns` is the value that `start` returned. A step must not take longer because the host wakes late.
        """


def draw_ns(duration: Duration, spec: AcceleratorSpec, epoch: int, steps: int) -> NDArray[np.int64]:
    """Return the computation time (ns) of each step, shape (steps,); equal for equal seed, rank and epoch."""
    key = np.array([spec.seed & 0xFFFFFFFFFFFFFFFF, (spec.rank << 32) | (epoch & 0xFFFFFFFF)], np.uint64)
    random = np.random.Generator(np.random.Philox(key=key))
    return np.rint(draw_seconds(duration, random, steps) * 1e9).astype(np.int64)
