"""AU and samples/s of one rank's block by each definition in use, and where the block's time went.

All take seconds. N steps; T the block's time by its stamps; c the configured seconds of a step; m the measured ones.

| name | AU | samples/s |
|---|---|---|
| `dlio_v1` | sum c[1:] / (T - proc[0]) | N / T x batch |
| `dlio` | sum m[s:e] / (T - sum proc[:s] - sum proc[e:]) | (N - 2) / the same time x batch |
| `dlio_v3` | the same with the last step dropped too | the same with the last step dropped too |
| `rules` | sum c / T | - |

Sources: statscounter of dlio_benchmark as in MLPerf Storage v1.0 and of 2026-06 (`compute_metrics_train`, `end_train`:
https://github.com/argonne-lcf/dlio_benchmark). Published runs of v3.0 fit only with the last step dropped
(https://github.com/mlcommons/storage_results_v3.0). `rules` is the text of the rules, v2.0 section 4: compute / running
time (https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlemu.mlperf.audit.logs import Seconds

DLIO_FORMULAS = ("dlio_v1", "dlio", "dlio_v3")
"""The formulas that a version of DLIO printed by."""


@dataclass(frozen=True, kw_only=True)
class BlockTimes:
    """One block of one rank."""

    load: Seconds
    proc: Seconds
    configured: Seconds
    """What each step was asked to take."""
    measured: Seconds
    """What each step took."""
    total_seconds: float
    """By the rank's own stamps, or by its own printed samples/s when only rank 0 kept stamps."""
    batch_size: float
    exclude_start_steps: int
    exclude_end_steps: int

    @property
    def steps(self) -> int:
        """Steps of the block."""
        return len(self.proc)


@dataclass(frozen=True)
class Rated:
    """AU and rate of a block by one formula; NaN where it has no time left to divide by."""

    au_percent: float
    samples_per_second: float


def rated(block: BlockTimes) -> dict[str, Rated]:
    """Return AU and samples/s of the block by each of DLIO's formulas."""
    return {
        "dlio_v1": _v1(block),
        "dlio": _since_v2(block, block.exclude_end_steps),
        "dlio_v3": _since_v2(block, max(1, block.exclude_end_steps)),
    }


def _v1(block: BlockTimes) -> Rated:
    counted = block.total_seconds - float(block.proc[0])
    au = 100 * float(block.configured[1:].sum()) / counted if counted > 0 else math.nan
    return Rated(au, block.steps / block.total_seconds * block.batch_size)


def _since_v2(block: BlockTimes, exclude_end_steps: int) -> Rated:
    start = block.exclude_start_steps
    end = max(start, block.steps - exclude_end_steps)
    counted = block.total_seconds - float(block.proc[:start].sum()) - float(block.proc[end:].sum())
    if counted <= 0:
        return Rated(math.nan, math.nan)
    rate = max(0, block.steps - 2) / counted * block.batch_size
    return Rated(100 * float(block.measured[start:end].sum()) / counted, rate)


@dataclass(frozen=True)
class Loss:
    """Seconds in which the accelerators did not compute. With `compute` they add up to `total`, exactly."""

    total: float
    compute: float
    """Configured seconds of all steps: what the rules credit."""
    first_step: float
    """The first step of each block beyond its computation: start of the loader and the first batch."""
    load: float
    """Waits for batches, from the second step on."""
    oversleep: float
    """Steps longer than configured, from the second on: the host woke late."""
    barrier: float
    """The block's time outside of all steps: waits for slower ranks, and the loop's own."""

    def __add__(self, other: Loss) -> Loss:
        return Loss(*(getattr(self, name) + getattr(other, name) for name in _PARTS))


_PARTS = ("total", "compute", "first_step", "load", "oversleep", "barrier")
NO_LOSS = Loss(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def loss(block: BlockTimes) -> Loss:
    """Return where the block's time went."""
    return Loss(
        total=block.total_seconds,
        compute=float(block.configured.sum()),
        first_step=float(block.proc[0] - block.configured[0]),
        load=float(block.load[1:].sum()),
        oversleep=float((block.proc - block.load - block.configured)[1:].sum()),
        barrier=block.total_seconds - float(block.proc.sum()),
    )


def waits_for_slower_seconds(procs: list[Seconds]) -> float:
    """Return what all ranks of one block together waited for the slowest rank of each step, from the second on."""
    steps = min(len(proc) for proc in procs)
    table = np.stack([proc[1:steps] for proc in procs])
    return float((table.max(axis=0) - table).sum()) if table.size else 0.0
