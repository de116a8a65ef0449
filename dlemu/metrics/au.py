"""Accelerator utilisation (AU) by each definition in use, from step rows, in percent; NaN for no time.

Rows are `STEP_DTYPE` records of one or more ranks, epochs and blocks. wait, compute and sync are the timeline of the
accelerator; `asked_ns`, `got_ns`, `slept_ns` and `met_ns` are stamps of the host.

DLIO computes AU and samples/s of each rank's block of N steps, and combines blocks and ranks to an epoch. T: the
block's time by the host's stamps; c, m: configured and measured computation time of a step; proc: time from requesting
a batch to the end of its computation; s:e: the steps that are not excluded.

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

The sustained AU is the AU that the storage would sustain in an endless epoch. In a short epoch, the AU of the counted
steps is too high: some of their batches were read during the uncounted first step. The supply, the rate of reading
while all readers are busy, has no such error (docs/metrics.md, section 2). The uncertainty (docs/uncertainty.md)
follows the GUM (JCGM 100:2008): independent standard uncertainties add in quadrature; U is k = 2 times the sum (95 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.rates import Floats, Intervals, Mean, Moments, time_within
from dlemu.metrics.rows import Rows, StepTable, as_table, cached, step_end_ns, sum_of
from dlemu.metrics.t_interval import Values, estimate


def kept_rows(rows: Rows, exclude_start: int, exclude_end: int) -> StepTable:
    """Return the rows without the first `exclude_start` and the last `exclude_end` steps of each block."""
    table = as_table(rows)
    sizes = np.diff(table.block_start_indices, append=len(table))
    index_in_block = np.arange(len(table)) - np.repeat(table.block_start_indices, sizes)
    return table[(index_in_block >= exclude_start) & (index_in_block < np.repeat(sizes, sizes) - exclude_end)]


def au_percent(rows: Rows) -> float:
    """Return compute / (wait + compute + sync), %: the headline `au` of kept rows, MLPerf's `au_rules` of all rows."""
    total = total_ns(rows)
    return 100.0 * sum_of(rows, "compute_ns") / total if total else math.nan


def total_ns(rows: Rows) -> int:
    """Return the time of all accelerators in these rows: wait + computation + sync."""
    return sum(sum_of(rows, name) for name in ("wait_ns", "compute_ns", "sync_ns"))


def au_dlio_percents(rows: Rows, exclude_start: int = 1, exclude_end: int = 0) -> list[tuple[float, float]]:
    """Return for each epoch the AU by DLIO 2.x, and by the DLIO of MLPerf Storage v1.0.

    Blocks are weighted by their steps, ranks equally.
    """
    percents = []
    for epoch in as_table(rows).by_epoch:
        v2, v1 = [], []
        for rank_rows in epoch.by_rank:
            blocks = [block_times(block) for block in rank_rows.by_block]
            steps = [block.steps for block in blocks]
            v2.append(over_blocks([rate_v2(block, exclude_start, exclude_end) for block in blocks], steps))
            v1.append(over_blocks([rate_v1(block) for block in blocks], steps))
        percents.append((over_ranks(v2).au_percent, over_ranks(v1).au_percent))
    return percents


def block_times(block: StepTable) -> BlockTimes:
    """Return the times of one block of one rank by the host's stamps, ns."""
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
    """The times of one block of one rank, all in one unit, which must be seconds to get samples/s."""

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
    """AU and rate by one formula; NaN if no time is counted (0 from `rate_fork`)."""

    au: float
    """Share of the time, 0 to 1."""
    samples_per_second: float

    @property
    def au_percent(self) -> float:
        return 100 * self.au


def rate_v1(block: BlockTimes, batch_size: float = math.nan) -> Rated:
    """Rate a block by the DLIO of MLPerf Storage v0.5 and v1.0: AU leaves out the first step.

    Its samples/s count all steps, and are also those of an evaluation (`compute_metrics_eval`).
    """
    counted = block.total - block.proc[0]
    au = float(block.configured[1:].sum() / counted) if counted > 0 else math.nan
    return Rated(au, block.steps / block.total * batch_size if block.total > 0 else math.nan)


def rate_v2(
    block: BlockTimes, exclude_start: int, exclude_end: int, batch_size: float = math.nan, steps: int | None = None
) -> Rated:
    """Rate a block by DLIO 2.x, which has an `exclude_end` of 0; samples/s are of `steps`, by default all but 2."""
    end = max(exclude_start, block.steps - exclude_end)
    counted = block.total - block.proc[:exclude_start].sum() - block.proc[end:].sum()
    if counted <= 0:
        return Rated(math.nan, math.nan)
    rate = (max(0, block.steps - 2) if steps is None else steps) / float(counted) * batch_size
    return Rated(float(block.measured[exclude_start:end].sum() / counted), rate)


def rate_v3(block: BlockTimes, exclude_start: int, exclude_end: int, batch_size: float = math.nan) -> Rated:
    """Rate a block by the DLIO of MLPerf Storage v3.0: as 2.x, but leave out at least the last step."""
    return rate_v2(block, exclude_start, max(1, exclude_end), batch_size)


def rate_fork(block: BlockTimes, exclude_start: int, exclude_end: int, batch_size: float = math.nan) -> Rated:
    """Rate a block by the fork of DLIO that MLPerf Storage v3.0 pins: AU and samples/s count the same steps."""
    steps = block.steps - exclude_end - exclude_start
    rated = rate_v2(block, exclude_start, exclude_end, batch_size, steps)
    return Rated(0.0, 0.0) if steps <= 0 or math.isnan(rated.au) else rated


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


@dataclass(frozen=True, kw_only=True)
class Supply:
    """The batches that an epoch's readers read while they were busy, summed over the accelerators."""

    read_ns: float
    """Computation time of the batches read; a batch that was half read counts half."""
    time_ns: float
    """Time in which they were read, summed over the accelerators."""
    edge_ns: float = 0.0
    """Standard uncertainty of `read_ns`: how much was read of the batches under way at the end is unknown."""
    is_lower_bound: bool = False
    """Whether the supply may be higher, because the epoch had too few batches to keep all readers busy."""

    @property
    def percent(self) -> float:
        """Share of the time for which the supply keeps accelerators busy; above 100 if it exceeds their demand."""
        return 100.0 * self.read_ns / self.time_ns if self.time_ns > 0 else math.nan


class _Batches:
    """One rank's batches of an epoch, each assumed to be read (or computed, if `computed`) at a constant rate.

    `begins` and `ends` are ns since the epoch's start. The training clock is stopped between blocks of steps, during
    checkpoints and evaluations.
    """

    def __init__(self, rows: StepTable, *, computed: bool = False) -> None:
        first, last = rows.block_ends
        start = first["free_ns"][0]
        self._blocks = first["free_ns"] - start, step_end_ns(last) - start
        self._compute = rows["compute_ns"]
        self.begins, self.ends = rows["started_ns"] - start, rows["finished_ns"] - start
        if computed:
            self.begins = rows["free_ns"] + rows["wait_ns"] - start
            self.ends = self.begins + self._compute
            return
        # If the queue filled up between two blocks, readers are idle at first: they begin one by one, as batches are
        # taken, and read less than they could. So the clock goes on only when the first read of the block is over.
        begins, ends = self._blocks
        first_reads = np.searchsorted(np.maximum.accumulate(self.begins), begins)
        read_ends = np.append(self.ends, ends[-1])
        are_idle = np.maximum.accumulate(read_ends)[first_reads - 1] <= begins
        is_full = are_idle & (first_reads > rows.block_start_indices) & (begins > 0)
        self._blocks = np.where(is_full, np.minimum(read_ends[first_reads], ends), begins), ends

    def training_clock(self, moments: Moments) -> Floats:
        """Return moments, given in ns since the epoch's start, on the training clock."""
        return time_within(*self._blocks, moments)

    def done_between(self, edges: Floats) -> Floats:
        """Return the computation time of batches read (or computed) between `edges`, times on the training clock."""
        batch_ends = np.maximum(self.ends, self.begins + 1)  # a batch takes at least 1 ns
        begins, ends = self.training_clock(self.begins), self.training_clock(batch_ends)
        amounts = self._compute * (ends - begins) / (batch_ends - self.begins)  # without the time between blocks
        return np.diff(Intervals(begins, np.maximum(ends, begins + 1.0), edges).cumulative(amounts))

    def square_under_way(self, moment: int) -> float:
        """Return the sum of the squared computation times of the batches that are being read at a moment."""
        return float((self._compute[(self.begins < moment) & (self.ends > moment)].astype(float) ** 2).sum())


@cached
def supplies_of(table: StepTable) -> list[Supply]:
    """Return the supply of each epoch, from the training rows of all ranks.

    It is measured from the start of the first batch until a rank starts its last one, without the time between blocks.
    If no batch of the epoch is complete by then, it is measured until a rank has all of its batches (`is_lower_bound`).
    """
    supplies = []
    for epoch in table.by_epoch:
        ranks = [_Batches(rank_rows) for rank_rows in epoch.by_rank]
        begin, end = min(rank.begins.min() for rank in ranks), min(rank.begins.max() for rank in ranks)
        is_lower_bound = all(rank.ends.min() > end for rank in ranks)
        if is_lower_bound:
            end = min(rank.ends.max() for rank in ranks)
        windows = [rank.training_clock(np.array([begin, end])) for rank in ranks]
        reads = [rank.done_between(window) for rank, window in zip(ranks, windows, strict=True)]
        # The standard uncertainty of a share that may be anything from 0 to 1 is 1 / sqrt(12) (GUM, 4.3.7).
        edge_ns = math.sqrt(sum(rank.square_under_way(end) for rank in ranks) / 12)
        read_ns, time_ns = float(np.sum(reads)), float(np.ptp(windows, axis=1).sum())
        supplies.append(Supply(read_ns=read_ns, time_ns=time_ns, edge_ns=edge_ns, is_lower_bound=is_lower_bound))
    return supplies


def _total(supplies: list[Supply]) -> Supply:
    """Return the supply of all epochs together, without those of which only a lower bound is known, unless all are."""
    supplies = [supply for supply in supplies if not supply.is_lower_bound] or supplies
    return Supply(
        read_ns=sum(supply.read_ns for supply in supplies),
        time_ns=sum(supply.time_ns for supply in supplies),
        edge_ns=math.hypot(*(supply.edge_ns for supply in supplies)),
    )


def sustained_au(rows: Rows, kept: Rows) -> Mean:
    """Return the sustained AU, of all rows and of each epoch: the smaller of supply and AU of the kept steps."""
    table, kept = as_table(rows), as_table(kept)
    supplies = supplies_of(table)
    parts = [kept.of("epoch", epoch.values("epoch")) for epoch in table.by_epoch]
    per_epoch = tuple(_smallest(supply.percent, au_percent(part)) for supply, part in zip(supplies, parts, strict=True))
    return Mean(mean=_smallest(_total(supplies).percent, au_percent(kept)), per_epoch=per_epoch)


def is_supply_known(rows: Rows) -> bool:
    """Return whether the sustained AU of these rows is a measured value; else it is only a lower bound."""
    return not all(supply.is_lower_bound for supply in supplies_of(as_table(rows)))


def prefetch_credit_percent(rows: Rows, kept: Rows) -> float | None:
    """Return the share of the kept batches, by computation time, that was read before their block's kept steps, %."""
    total_compute_ns, read_ahead_ns = sum_of(kept, "compute_ns"), 0.0
    for block in as_table(kept).by_block:
        started = block["started_ns"]
        shares = (block["free_ns"][0] - started) / np.maximum(block["finished_ns"] - started, 1)
        read_ahead_ns += float(block["compute_ns"] @ np.clip(shares, 0, 1))
    return 100.0 * read_ahead_ns / total_compute_ns if total_compute_ns else None


def _smallest(*percents: float) -> float | None:
    """Return the smallest of the percents that are not NaN, at most 100; None if all are NaN."""
    numbers = [percent for percent in percents if not math.isnan(percent)]
    return min(100.0, *numbers) if numbers else None


COVERAGE = 2.0  # k, the factor from the combined standard uncertainty to U
_CONFIDENCE = 0.9545  # share of a normal distribution within +- 2 standard deviations
_WINDOW_SECONDS, _WINDOW_STEPS = 1.0, 2
"""Shortest window of time in which the AU is computed, in seconds and in steps: long compared with a step, and with the
time slices of drives, caches and throttles."""
_MIN_WINDOWS = 6  # windows of a run that is shorter than _MIN_WINDOWS x _WINDOW_SECONDS
_MIN_VALUES = 3  # windows or epochs for an interval: with two, Student's t is 14, and the interval is useless
_CLOCK_NS = 1_000  # assumed error of a stamp, which comes a system call and a thread switch after its event


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Uncertainty of AU of a run."""

    expanded_percent: float
    """U (k = 2), in points: the true value is within +- U in about 95 of 100 runs."""
    budget: dict[str, float]
    """Source -> the standard uncertainty of AU that it causes, in points. The spread between windows of time is of type
    A (GUM), from measured values; the others are of type B, from knowledge of the method."""


def uncertainty_of(rows: Rows, kept: Rows) -> Uncertainty | None:
    """Return the uncertainty of the sustained AU of the same rows; None when too little was measured."""
    rows, kept = as_table(rows), as_table(kept)
    supplies = supplies_of(rows)
    total = _total(supplies)
    by_supply = total.percent < au_percent(kept)  # as in `sustained_au`
    values = _windows(rows if by_supply else kept, by_supply=by_supply)
    if len(values) < _MIN_VALUES:
        values = np.array([supply.percent for supply in supplies] if by_supply else [*map(au_percent, kept.by_epoch)])
    if len(values) < _MIN_VALUES:
        return None
    all_ns = max(total.time_ns if by_supply else total_ns(kept), 1.0)
    budget = {
        "spread between windows of time": estimate(values, _CONFIDENCE).half_width_percent / COVERAGE,
        "batches half read where an epoch's window ends": 100 * total.edge_ns / all_ns if by_supply else 0.0,
        "clock and stamps": 100 * _CLOCK_NS * math.sqrt(len(rows)) / all_ns,
    }
    return Uncertainty(expanded_percent=COVERAGE * math.hypot(*budget.values()), budget=budget)


def _windows(rows: StepTable, *, by_supply: bool) -> Values:
    """Return the supply (or the AU, if not `by_supply`) of each window of time, epoch by epoch, in percent."""
    epochs = [[_Batches(rank_rows, computed=not by_supply) for rank_rows in epoch.by_rank] for epoch in rows.by_epoch]
    spans = [_span(ranks, by_supply=by_supply) for ranks in epochs]
    step_ns = sum_of(rows, "compute_ns") / max(1, len(rows))
    window_ns = min(_WINDOW_SECONDS * 1e9, sum(high - low for low, high in spans) / _MIN_WINDOWS)
    window_ns = max(window_ns, _WINDOW_STEPS * step_ns)
    values = [np.empty(0)]
    for ranks, (low, high) in zip(epochs, spans, strict=True):
        windows = int((high - low + 1.0) / window_ns)  # + 1 ns: else rounding could leave out the end of the epoch
        if windows:
            edges = np.linspace(low, high, windows + 1)
            done_ns = np.sum([rank.done_between(edges) for rank in ranks], axis=0)
            values.append(100 * done_ns / np.diff(edges) / len(rows.by_rank))
    return np.concatenate(values) if by_supply else np.minimum(np.concatenate(values), 100.0)


def _span(ranks: list[_Batches], *, by_supply: bool) -> tuple[float, float]:
    """Return begin and end of the part of an epoch that is divided into windows, on the training clock."""
    moments = [rank.training_clock(np.array([rank.begins.min(), rank.begins.max(), rank.ends.max()])) for rank in ranks]
    first_begin, last_begin, end = np.transpose(moments)
    if by_supply:
        return first_begin.min(), last_begin.min()
    return 0.0, np.maximum(end, last_begin + 1.0).max()
