"""What the loop needs from an accelerator: how long its steps take, to start one, and to say when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dlemu.comm.clock import Clock
from dlemu.config.duration import draw_seconds
from dlemu.config.schema import Duration

Phase = Literal["train", "valid", "ceiling"]


@dataclass(frozen=True, kw_only=True)
class AcceleratorSpec:
    """All an accelerator needs to know; picklable."""

    rank: int
    seed: int
    """Of the draws."""
    computation_time: Duration
    """Of a step in training, and in the measurement of the emulator's ceiling."""
    eval_time: Duration
    """Of a step in evaluation."""


class Accelerator(Protocol):
    """One rank's accelerator. Made in the rank, by the thread that runs the loop."""

    def __init__(self, spec: AcceleratorSpec, clock: Clock) -> None: ...

    @classmethod
    def check_host(cls, spec: AcceleratorSpec) -> None:
        """Raise UserError where this host can't do it; called once per host before anything is measured."""
        ...

    def draw_compute_ns(self, phase: Phase, epoch: int, steps: int) -> NDArray[np.int64]:
        """Return the nominal computation time of each step of an epoch (from 1; 0 for the ceiling), shape (steps,)."""
        ...

    def start(self, data: Any, begin_ns: int, compute_ns: int) -> int:
        """Start a step on a batch, the loader's own type, at `begin_ns`; return when it will end, as far as known."""
        ...

    def finish(self, end_ns: int) -> int:
        """Wait until the step is over and return when it was, on the accelerator's own timeline.

        `end_ns` is what `start` returned. A host that wakes late must not make the step longer.
        """
        ...


def draw_ns(duration: Duration, spec: AcceleratorSpec, epoch: int, steps: int) -> NDArray[np.int64]:
    """Return the computation time of each step, shape (steps,); the same for the same seed, rank and epoch."""
    key = np.array([spec.seed & 0xFFFFFFFFFFFFFFFF, (spec.rank << 32) | (epoch & 0xFFFFFFFF)], np.uint64)
    random = np.random.Generator(np.random.Philox(key=key))
    return np.rint(draw_seconds(duration, random, steps) * 1e9).astype(np.int64)
