"""Accelerator utilisation, by each definition in use. All take step rows and return percent, NaN for no time.

Rows are `STEP_DTYPE` records of one or more ranks, epochs and blocks; wait, compute and sync are the accelerator's own
timeline, the host's stamps are `asked_ns`, `got_ns`, `slept_ns` and `met_ns`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dlemu.metrics.dlio_formulas import BlockTimes, Rated, over_blocks, over_ranks, rate_v1, rate_v2
from dlemu.metrics.rows import Rows, StepTable, in_order, sum_of


def kept_rows(rows: Rows, exclude_start: int, exclude_end: int) -> StepTable:
    """Return the rows left when each block of each rank loses its first and last steps."""
    return in_order(rows).trimmed(exclude_start, exclude_end)


def blocks(rows: Rows) -> Iterator[StepTable]:
    """Yield each rank's rows of each block, in step order."""
    yield from in_order(rows).by_block


def au_percent(rows: Rows) -> float:
    """Return compute / (wait + compute + sync): of `kept_rows` the headline `au`; of all rows MLPerf's `au_rules`."""
    compute = sum_of(rows, "compute_ns")
    total = compute + sum_of(rows, "wait_ns") + sum_of(rows, "sync_ns")
    return 100.0 * compute / total if total else math.nan


def au_dlio_percents(rows: Rows, exclude_start: int = 1, exclude_end: int = 0) -> list[tuple[float, float]]:
    """Return for each epoch its AU as DLIO 2.x prints it, and as DLIO of MLPerf Storage v1.0 does.

    Blocks are weighted by their steps, ranks equally. Formulas: `dlemu.metrics.dlio_formulas`.
    """
    epochs: dict[int, dict[int, list[tuple[Rated, Rated, int]]]] = {}
    for block in blocks(rows):
        (epoch,), (rank,), times = block.values("epoch"), block.values("rank"), block_times(block)
        rated = rate_v2(times, exclude_start, exclude_end), rate_v1(times), len(block)
        epochs.setdefault(epoch, {}).setdefault(rank, []).append(rated)
    return [_percents(epochs[epoch]) for epoch in sorted(epochs)]


def _percents(ranks: dict[int, list[tuple[Rated, Rated, int]]]) -> tuple[float, float]:
    """Return the AU of an epoch by DLIO 2.x and by v1.0, from each rank's blocks with their numbers of steps."""
    v2, v1 = [], []
    for parts in ranks.values():
        by_v2, by_v1, steps = zip(*parts, strict=True)
        v2.append(over_blocks(by_v2, steps))
        v1.append(over_blocks(by_v1, steps))
    return over_ranks(v2).au_percent, over_ranks(v1).au_percent


def block_times(block: Rows) -> BlockTimes:
    """Return the times in nanoseconds of one block of one rank, by the host's own stamps."""
    block = in_order(block)
    asked, got, slept = (block[name] for name in ("asked_ns", "got_ns", "slept_ns"))
    _, (began, _), (_, over) = block.ends("asked_ns", "met_ns")
    return BlockTimes(
        load=got - asked,
        proc=slept - asked,
        configured=block["compute_ns"],
        measured=slept - got,
        total=int(over[-1] - began[0]),
    )
