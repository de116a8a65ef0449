"""Accelerator utilisation, by each definition in use. All take step rows and return percent, NaN for no time.

Rows are `STEP_DTYPE` records of one or more ranks, epochs and blocks; wait, compute and sync are the accelerator's own
timeline, the host's stamps are `asked_ns`, `got_ns`, `slept_ns` and `met_ns`.

DLIO's formulas: AU and samples/s of one rank's block of steps, and how ranks and blocks make an epoch.

N steps; T the block's time by the host's stamps; c the configured time of a step; m the measured one.

| name | AU | samples/s |
|---|---|---|
| `dlio_v1` | sum c[1:] / (T - proc[0]) | N / T x batch |
| `dlio` | sum m[s:e] / (T - sum proc[:s] - sum proc[e:]) | (N - 2) / the same time x batch |
| `dlio_v3` | the same with the last step dropped too | the same with the last step dropped too |
| `dlio_fork` | as `dlio` | (steps counted by AU) / the same time x batch |

Sources: statscounter of dlio_benchmark as in MLPerf Storage v1.0 and of 2026-06 (`compute_metrics_train`, `end_train`:
https://github.com/argonne-lcf/dlio_benchmark). Published runs of v3.0 fit only with the last step dropped
(https://github.com/mlcommons/storage_results_v3.0). `dlio_fork` is `compute_metrics_train` of the fork that v3.0 pins,
as of 2026-07 (https://github.com/mlcommons/DLIO_local_changes): samples/s count the steps that AU counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.rows import Rows, StepTable, in_order, sum_of


def kept_rows(rows: Rows, exclude_start: int, exclude_end: int) -> StepTable:
    """Return the rows left when each block of each rank loses its first and last steps."""
    return in_order(rows).trimmed(exclude_start, exclude_end)


def au_percent(rows: Rows) -> float:
    """Return compute / (wait + compute + sync): of `kept_rows` the headline `au`; of all rows MLPerf's `au_rules`."""
    total = total_ns(rows)
    return 100.0 * sum_of(rows, "compute_ns") / total if total else math.nan


def total_ns(rows: Rows) -> int:
    """Return the time of all accelerators in these rows: wait + computation + sync."""
    return sum(sum_of(rows, name) for name in ("wait_ns", "compute_ns", "sync_ns"))


def au_dlio_percents(rows: Rows, exclude_start: int = 1, exclude_end: int = 0) -> list[tuple[float, float]]:
    """Return for each epoch its AU as DLIO 2.x prints it, and as DLIO of MLPerf Storage v1.0 does.

    Blocks are weighted by their steps, ranks equally.
    """
    percents = []
    for epoch in in_order(rows).by_epoch:
        v2, v1 = [], []
        for own in epoch.by_rank:
            blocks = [block_times(block) for block in own.by_block]
            steps = [block.steps for block in blocks]
            v2.append(over_blocks([rate_v2(block, exclude_start, exclude_end) for block in blocks], steps))
            v1.append(over_blocks([rate_v1(block) for block in blocks], steps))
        percents.append((over_ranks(v2).au_percent, over_ranks(v1).au_percent))
    return percents


def block_times(block: StepTable) -> BlockTimes:
    """Return the times in nanoseconds of one block of one rank, by the host's own stamps."""
    asked, got, slept = (block[name] for name in ("asked_ns", "got_ns", "slept_ns"))
    return BlockTimes(
        load=got - asked,
        proc=slept - asked,
        configured=block["compute_ns"],
        measured=slept - got,
        total=int(block["met_ns"][-1] - asked[0]),
    )


Times = NDArray[np.float64] | NDArray[np.int64]
"""Shape (steps,)."""


@dataclass(frozen=True, kw_only=True)
class BlockTimes:
    """One block of one rank. All times are in one unit: seconds, unless AU alone is requested."""

    load: Times
    """From requesting each batch to having it."""
    proc: Times
    """From requesting each batch to the end of its computation."""
    configured: Times
    """Nominal computation time of each step."""
    measured: Times
    """Actual computation time of each step, by the host's stamps."""
    total: float
    """From requesting the first batch to the last all-reduce of all ranks."""

    @property
    def steps(self) -> int:
        return len(self.proc)


@dataclass(frozen=True)
class Rated:
    """AU and rate by one formula; NaN where no time is left to divide by (0 by `rate_fork`)."""

    au: float
    """Share of the time, 0 to 1."""
    samples_per_second: float

    @property
    def au_percent(self) -> float:
        return 100 * self.au


def rate_v1(block: BlockTimes, batch_size: float = math.nan) -> Rated:
    """Rate a block by DLIO as in MLPerf Storage v0.5 and v1.0: its first step is left out of AU.

    Its samples/s, which leave out nothing, are also those of an evaluation (`compute_metrics_eval`).
    """
    counted = block.total - block.proc[0]
    au = float(block.configured[1:].sum() / counted) if counted > 0 else math.nan
    return Rated(au, block.steps / block.total * batch_size if block.total > 0 else math.nan)


def rate_v2(block: BlockTimes, exclude_start: int, exclude_end: int, batch_size: float = math.nan) -> Rated:
    """Rate a block by DLIO 2.x (its rule while `exclude_end` is 0); samples/s leave out DLIO's fixed 2 steps."""
    end = max(exclude_start, block.steps - exclude_end)
    counted = block.total - block.proc[:exclude_start].sum() - block.proc[end:].sum()
    if counted <= 0:
        return Rated(math.nan, math.nan)
    rate = max(0, block.steps - 2) / float(counted) * batch_size
    return Rated(float(block.measured[exclude_start:end].sum() / counted), rate)


def rate_v3(block: BlockTimes, exclude_start: int, exclude_end: int, batch_size: float = math.nan) -> Rated:
    """Rate a block by DLIO as in MLPerf Storage v3.0: 2.x with at least the last step left out."""
    return rate_v2(block, exclude_start, max(1, exclude_end), batch_size)


def rate_fork(block: BlockTimes, exclude_start: int, exclude_end: int, batch_size: float = math.nan) -> Rated:
    """Rate a block by the fork of DLIO that MLPerf Storage v3.0 pins: AU and samples/s over the same steps."""
    end = max(exclude_start, block.steps - exclude_end)
    counted = block.total - block.proc[:exclude_start].sum() - block.proc[end:].sum()
    if counted <= 0 or end == exclude_start:
        return Rated(0.0, 0.0)
    rate = (end - exclude_start) / float(counted) * batch_size
    return Rated(float(block.measured[exclude_start:end].sum() / counted), rate)


def over_blocks(blocks: Sequence[Rated], steps: Sequence[int]) -> Rated:
    """Combine one rank's blocks of an epoch, weighted by their steps."""
    if len(blocks) == 1:
        return blocks[0]
    au = np.average([block.au for block in blocks], weights=steps)
    rate = np.average([block.samples_per_second for block in blocks], weights=steps)
    return Rated(float(au), float(rate))


def over_ranks(ranks: Sequence[Rated]) -> Rated:
    """Combine the ranks of an epoch: the mean of their AU, the sum of their samples/s."""
    au, rate = np.mean([rank.au for rank in ranks]), np.sum([rank.samples_per_second for rank in ranks])
    return Rated(float(au), float(rate))
