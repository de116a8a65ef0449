"""What the storage sustains: the AU of an epoch without end, from the steps of short ones.

While the first step of an epoch waits, readers fill their queues. The headline AU leaves that step out and counts the
steps that use the batches up, so short epochs buy AU with reads that were made outside the counted time. What can go
on for ever is the rate at which batches were made while the readers were at work (docs/metrics.md, section 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.au import Rows, au_percent
from dlemu.metrics.spread import Mean, by_epoch, known


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What was made of an epoch's batches while its readers were at work, summed over the accelerators."""

    read_ns: float
    """Computation time of the batches that were read; of one half read, half."""
    time_ns: float
    edge_ns: float = 0.0
    """Standard uncertainty of `read_ns`: of batches under way at the end, all or nothing may have been read."""

    @property
    def percent(self) -> float:
        """How much of the accelerators' time the supply would keep busy; above 100 where it runs ahead."""
        return 100.0 * self.read_ns / self.time_ns if self.time_ns > 0 else math.nan


def supply_of(epoch: Rows) -> Supply:
    """Return the supply of one epoch's training rows, of all ranks.

    From the first reader's first batch to the moment when a first rank begins its last one: up to then the readers of
    all ranks have something to do. Time between blocks of steps (checkpoints) is left out with what is read in it. Each
    rank's stamps count from its own epoch start, which is the same moment on all of them, so clocks need not agree.
    """
    if not len(epoch):
        return Supply(read_ns=0.0, time_ns=0.0)
    ordered = epoch[np.argsort(epoch["rank"], kind="stable")]  # once: a look for each of thousands of ranks takes long
    ranks = np.split(ordered, np.flatnonzero(np.diff(ordered["rank"])) + 1)
    starts = [int(own["free_ns"].min()) for own in ranks]
    begin = min(int(own["started_ns"].min()) - start for own, start in zip(ranks, starts, strict=True))
    end = min(int(own["started_ns"].max()) - start for own, start in zip(ranks, starts, strict=True))
    read_ns = time_ns = 0.0
    for own, start in zip(ranks, starts, strict=True):
        for low, high in _training_windows(own, start, begin, end):
            read_ns += _read_by(own, start, high) - _read_by(own, start, low)
            time_ns += high - low
    # A share that may be anything from 0 to 1 has a standard deviation of 1 / sqrt(12) (GUM, 4.3.7).
    edges = [_under_way(own, start, end) for own, start in zip(ranks, starts, strict=True)]
    return Supply(read_ns=read_ns, time_ns=time_ns, edge_ns=math.sqrt(sum(edges) / 12))


def _training_windows(own: Rows, start: int, begin: int, end: int) -> list[tuple[int, int]]:
    """Return when the accelerator was in training between two moments: its blocks of steps."""
    windows = []
    for block in np.unique(own["block"]):
        part = own[own["block"] == block]
        last = part[part["step"].argmax()]
        over = int(last["free_ns"] + last["wait_ns"] + last["compute_ns"] + last["sync_ns"]) - start
        low, high = max(begin, int(part["free_ns"].min()) - start), min(end, over)
        if high > low:
            windows.append((low, high))
    return windows


def _read_by(own: Rows, start: int, moment: int) -> float:
    """Return the computation time of what was read up to a moment, each batch read evenly over its making."""
    took = np.maximum(own["finished_ns"] - own["started_ns"], 1)
    return float((own["compute_ns"] * np.clip((moment + start - own["started_ns"]) / took, 0, 1)).sum())


def _under_way(own: Rows, start: int, moment: int) -> float:
    """Return the sum of squared computation times of the batches that are being read at a moment."""
    at = moment + start
    under_way = own["compute_ns"][(own["started_ns"] < at) & (own["finished_ns"] > at)].astype(float)
    return float((under_way**2).sum())


def au_sustained_percent(rows: Rows, kept: Rows) -> Mean:
    """Return the AU that an endless epoch would have, over all rows together and for each epoch.

    The smaller of two: what the readers supplied, and the AU of the kept steps (which is lower where something else
    than the supply holds the accelerators back: other ranks, the host, or readers that wait for their turn).
    """
    epochs = by_epoch(rows)
    supplies = [supply_of(epoch) for epoch in epochs]
    whole = Supply(
        read_ns=sum(supply.read_ns for supply in supplies), time_ns=sum(supply.time_ns for supply in supplies)
    )
    kept_by_epoch = [kept[kept["epoch"] == epoch["epoch"][0]] for epoch in epochs]
    return Mean(
        mean=_smaller(whole.percent, au_percent(kept)),
        per_epoch=tuple(
            _smaller(supply.percent, au_percent(part)) for supply, part in zip(supplies, kept_by_epoch, strict=True)
        ),
    )


def prefetch_credit_percent(rows: Rows, kept: Rows) -> float | None:
    """Return the share of the kept steps' batches that was read before the first kept step of its block began, in %.

    What was read outside the counted time, and counts all the same; weighed by computation time.
    """
    total = float(kept["compute_ns"].sum())
    if not total:
        return None
    ahead = 0.0
    for rank in np.unique(kept["rank"]):
        for epoch in by_epoch(kept[kept["rank"] == rank]):
            for block in np.unique(epoch["block"]):
                part = epoch[epoch["block"] == block]
                ahead += _read_by(part, 0, int(part["free_ns"].min()))
    return known(100.0 * ahead / total)


def _smaller(*percents: float) -> float | None:
    """Return the smallest of the percents, at most 100; None where there is none."""
    there = [percent for percent in percents if not math.isnan(percent)]
    return min(100.0, *there) if there else None
