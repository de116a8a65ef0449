"""What the storage sustains: the AU of an epoch without end, from the steps of short ones.

While the first step of an epoch waits, readers fill their queues. The headline AU leaves that step out and counts the
steps that use the batches up, so short epochs buy AU with reads that were made outside the counted time. What can go
on for ever is the rate at which batches were made while the readers were at work (docs/metrics.md, section 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.au import au_percent
from dlemu.metrics.rows import Rows, StepTable, Whole, in_order, sum_of
from dlemu.metrics.spread import Mean, by_epoch, known


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What was made of an epoch's batches while its readers were at work, summed over the accelerators."""

    read_ns: float
    """Computation time of the batches that were read; of one half read, half."""
    time_ns: float
    edge_ns: float = 0.0
    """Standard uncertainty of `read_ns`: of batches under way at the end, all or nothing may have been read."""
    at_least: bool = False
    """All of the epoch was under way at once: readers had nothing more to do, and may have been able to do more."""

    @property
    def percent(self) -> float:
        """How much of the accelerators' time the supply would keep busy; above 100 where it runs ahead."""
        return 100.0 * self.read_ns / self.time_ns if self.time_ns > 0 else math.nan


def supply_of(epoch: Rows) -> Supply:
    """Return the supply of one epoch's training rows, of all ranks.

    From the first reader's first batch to the moment when a first rank begins its last one: up to then the readers of
    all ranks have something to do. Time between blocks of steps (checkpoints) is left out with what is read in it. Each
    rank's stamps count from its own epoch start, which is the same moment on all of them, so clocks need not agree.

    An epoch so short that none of its batches is over when the last one is begun has no such time; of it counts what
    was read until the first rank had all of its batches, and that is the least that the storage can sustain.
    """
    return in_order(epoch).once(_supply_of)


def _supply_of(epoch: StepTable) -> Supply:
    if not len(epoch):
        return Supply(read_ns=0.0, time_ns=0.0)
    ranks = epoch.by_rank
    starts = [int(own["free_ns"].min()) for own in ranks]
    begin, end = (min(moments) for moments in zip(*map(_first_and_last, ranks, starts), strict=True))
    at_once = all(int(own["finished_ns"].min()) - start > end for own, start in zip(ranks, starts, strict=True))
    if at_once:  # what is known then is how long the first rank's batches took together
        end = min(int(own["finished_ns"].max()) - start for own, start in zip(ranks, starts, strict=True))
    read_ns, time_ns, edges = 0.0, 0.0, []
    for own, start in zip(ranks, starts, strict=True):
        batches = _Batches(own)
        lows, highs = (moments - start for moments in training_spans(own))
        for low, high in _overlaps(lows, highs, begin, end):
            read_ns += batches.read_by(start + high) - batches.read_by(start + low)
            time_ns += high - low
        edges.append(batches.under_way(start + end))
    # A share that may be anything from 0 to 1 has a standard deviation of 1 / sqrt(12) (GUM, 4.3.7).
    return Supply(read_ns=read_ns, time_ns=time_ns, edge_ns=math.sqrt(sum(edges) / 12), at_least=at_once)


def _first_and_last(own: StepTable, start: int) -> tuple[int, int]:
    """Return when a rank's first batch was begun, and its last one."""
    started = own["started_ns"]
    return int(started.min()) - start, int(started.max()) - start


def training_spans(own: StepTable) -> tuple[Whole, Whole]:
    """Return when each block of one rank's steps began and when it was over: in between the accelerator trains."""
    _, first, last = own.ends("free_ns", "wait_ns", "compute_ns", "sync_ns")
    return first[0], sum(last[1:], start=last[0])


def _overlaps(lows: Whole, highs: Whole, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of spans that are between two moments."""
    pairs = zip(np.maximum(begin, lows).tolist(), np.minimum(end, highs).tolist(), strict=True)
    return [(low, high) for low, high in pairs if high > low]


class _Batches:
    """One rank's batches, each read evenly over its making."""

    def __init__(self, own: StepTable) -> None:
        self._started, self._compute = own["started_ns"], own["compute_ns"]
        self._finished = np.maximum(own["finished_ns"], self._started + 1)
        self._latest = np.maximum.accumulate(self._finished)
        self._earliest = np.minimum.accumulate(self._started[::-1])[::-1]
        self._before = np.cumsum(self._compute)

    def _some(self, moment: int) -> slice:
        """Return the batches that may be under way: those before them are over, those behind them not begun."""
        over = int(np.searchsorted(self._latest, moment, side="right"))
        begun = int(np.searchsorted(self._earliest, moment))
        return slice(over, max(over, begun))

    def read_by(self, moment: int) -> float:
        """Return the computation time of what was read up to a moment."""
        some = self._some(moment)
        took = self._finished[some] - self._started[some]
        shares = np.clip((moment - self._started[some]) / took, 0, 1)
        before = float(self._before[some.start - 1]) if some.start else 0.0
        return before + float((self._compute[some] * shares).sum())

    def under_way(self, moment: int) -> float:
        """Return the sum of squared computation times of the batches that are being read at a moment."""
        some = self._some(moment)
        there = (self._started[some] < moment) & (self._finished[some] > moment)
        return float((self._compute[some][there].astype(float) ** 2).sum())


def sustained_au(rows: Rows, kept: Rows) -> Mean:
    """Return the AU that an endless epoch would have, over all rows together and for each epoch.

    The smaller of two: what the readers supplied, and the AU of the kept steps (which is lower where something else
    than the supply holds the accelerators back: other ranks, the host, or readers that wait for their turn).
    """
    epochs = by_epoch(rows)
    supplies = [supply_of(epoch) for epoch in epochs]
    whole = Supply(
        read_ns=sum(supply.read_ns for supply in supplies), time_ns=sum(supply.time_ns for supply in supplies)
    )
    kept = in_order(kept)
    kept_by_epoch = [kept.of("epoch", epoch.values("epoch")) for epoch in epochs]
    return Mean(
        mean=_smaller(whole.percent, au_percent(kept)),
        per_epoch=tuple(
            _smaller(supply.percent, au_percent(part)) for supply, part in zip(supplies, kept_by_epoch, strict=True)
        ),
    )


def is_supply_known(rows: Rows) -> bool:
    """Return whether the epochs show what the storage sustains, and not only the least that it does."""
    return not any(supply_of(epoch).at_least for epoch in by_epoch(rows))


def prefetch_credit_percent(rows: Rows, kept: Rows) -> float | None:
    """Return the share of the kept steps' batches that was read before the first kept step of its block began, in %.

    What was read outside the counted time, and counts all the same; weighed by computation time.
    """
    total = float(sum_of(kept, "compute_ns"))
    if not total:
        return None
    ahead = 0.0
    for block in in_order(kept).by_block:
        _, (begin,), _ = block.ends("free_ns")
        early = np.flatnonzero(block["started_ns"] < begin[0])
        if len(early):  # those behind the last of them have no part in it
            ahead += _Batches(block[: int(early[-1]) + 1]).read_by(int(begin[0]))
    return known(100.0 * ahead / total)


def _smaller(*percents: float) -> float | None:
    """Return the smallest of the percents, at most 100; None where there is none."""
    there = [percent for percent in percents if not math.isnan(percent)]
    return min(100.0, *there) if there else None
