"""Accelerator utilisation, by each definition in use. All take step rows and return percent, NaN for no time.

Rows are `STEP_DTYPE` records of one or more ranks, epochs and blocks; wait, compute and sync are the accelerator's own
timeline, the host's stamps are `asked_ns`, `got_ns`, `slept_ns` and `met_ns`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from dlemu.metrics.dlio_formulas import BlockTimes, Rated, over_blocks, over_ranks, rate_v1, rate_v2
from dlemu.metrics.rows import Rows, StepTable, in_order, since_free, sum_of


def kept_rows(rows: Rows, exclude_start: int, exclude_end: int) -> StepTable:
    """Return the rows left when each block of each rank loses its first and last steps."""
    return in_order(rows).trimmed(exclude_start, exclude_end)


def blocks(rows: Rows) -> Iterator[StepTable]:
    """Yield each rank's rows of each block, in step order."""
    yield from in_order(rows).by_block


def au_percent(rows: Rows) -> float:
    """Return compute / (wait + compute + sync), summed over the rows given.

    With `kept_rows` this is the headline `au`; with all rows it is `au_rules`, the formula in the text of the MLPerf
    Storage rules ("total compute time / total benchmark running time"), which drops no steps.
    """
    compute = sum_of(rows, "compute_ns")
    total = compute + sum_of(rows, "wait_ns") + sum_of(rows, "sync_ns")
    return 100.0 * compute / total if total else math.nan


def au_dlio_percent(rows: Rows, exclude_start: int = 1, exclude_end: int = 0) -> float:
    """Return DLIO 2.x's AU of one epoch: measured sleep over block time, on the host's own stamps.

    Compute runs from the batch in hand to waking up, proc from requesting the batch to waking up, and block time from
    the block's start to the last all-reduce. Formulas: `dlemu.metrics.dlio_formulas`.
    """
    return _epoch_percent(rows, lambda block: rate_v2(block, exclude_start, exclude_end))


def au_dlio_v1_percent(rows: Rows) -> float:
    """Return the AU of DLIO as used in MLPerf Storage v1.0: configured compute of all steps but the first over block
    time without the first step; blocks are weighted by their steps, ranks equally."""
    return _epoch_percent(rows, rate_v1)


def block_times(block: Rows) -> BlockTimes:
    """Return the times in nanoseconds of one block of one rank, by the host's own stamps."""
    block = in_order(block)
    asked, got, slept = (since_free(block, name) for name in ("asked_ns", "got_ns", "slept_ns"))
    _, (began, _), (_, over) = block.ends("asked_ns", "met_ns")
    return BlockTimes(
        load=got - asked,
        proc=slept - asked,
        configured=block["compute_ns"],
        measured=slept - got,
        total=int(over[-1] - began[0]),
    )


def _epoch_percent(rows: Rows, rate: Callable[[BlockTimes], Rated]) -> float:
    ranks: dict[int, list[tuple[Rated, int]]] = {}
    for block in blocks(rows):
        ranks.setdefault(int(block.label("rank")[0]), []).append((rate(block_times(block)), len(block)))
    if not ranks:
        return math.nan
    return over_ranks([over_blocks(*zip(*parts, strict=True)) for parts in ranks.values()]).au_percent
