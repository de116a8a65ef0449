"""A run's numbers recomputed from the steps of its ranks, where they were kept, or from block times, with bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from dlemu.mlperf.audit.formulas import (
    DLIO_FORMULAS,
    NO_LOSS,
    BlockTimes,
    Loss,
    Rated,
    loss,
    rated,
    waits_for_slower_seconds,
)
from dlemu.mlperf.audit.logs import BlockArrays, Logs, Seconds
from dlemu.mlperf.audit.setup import Setup
from dlemu.mlperf.audit.spans import BlockKey


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A run's numbers by one formula: each epoch's, and their mean."""

    au_by_epoch: tuple[float, ...] = ()
    samples_per_second_by_epoch: tuple[float, ...] = ()

    @property
    def au_percent(self) -> float | None:
        """Mean over epochs; None when any epoch has no number."""
        return _mean(self.au_by_epoch)

    @property
    def samples_per_second(self) -> float | None:
        """Mean over epochs; None when any epoch has no number."""
        return _mean(self.samples_per_second_by_epoch)


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """What the kept files give."""

    basis: str
    """`steps`: arrays of all ranks; `some ranks`: of a few, scaled; `blocks`: time stamps alone; `nothing`."""
    ranks_kept: int = 0
    epochs: int = 0
    steps_per_epoch: int | None = None
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    au_rules_percent: float | None = None
    au_bounds_percent: tuple[float, float] | None = None
    """Of DLIO's formulas, where only block times were kept."""
    rate_bounds: tuple[float, float] | None = None
    """Least and most samples/s that the time stamps allow, where only block times were kept."""
    loss_percent: Mapping[str, float] = field(default_factory=dict)
    """Of the time of all blocks; the parts add up to 100 - `au_rules_percent`."""


NOTHING = Recomputed(basis="nothing")


def from_steps(setup: Setup, accelerators: int | None, logs: Logs) -> Recomputed:
    """Return what the arrays of the ranks give, or NOTHING when there is no block that all of them kept.

    Of fewer ranks than `accelerators`, samples/s are scaled up.
    """
    blocks, kept = _whole_blocks(logs), len(logs.arrays)
    if not blocks:
        return NOTHING
    ranks = accelerators or kept
    times = {block: [block_times(setup, logs, rank, block) for rank in logs.arrays] for block in blocks}
    lost = reduce(Loss.__add__, (loss(one) for parts in times.values() for one in parts), NO_LOSS)
    slower = sum(waits_for_slower_seconds([one.proc for one in parts]) for parts in times.values())
    epochs = sorted({epoch for epoch, _ in blocks})
    per_epoch = {epoch: [parts for block, parts in times.items() if block[0] == epoch] for epoch in epochs}
    rules = 100 * lost.compute / lost.total
    return Recomputed(
        basis="steps" if kept >= ranks else "some ranks",
        ranks_kept=kept,
        epochs=len(epochs),
        steps_per_epoch=sum(parts[0].steps for parts in per_epoch[epochs[0]]),
        formulas={name: _formula(name, per_epoch, ranks / kept, setup.drawn) for name in DLIO_FORMULAS},
        au_rules_percent=rules if math.isfinite(rules) else None,
        loss_percent=_shares(lost, slower if kept >= ranks else None),
    )


def _whole_blocks(logs: Logs) -> list[BlockKey]:
    """Return the blocks of which every rank that kept arrays has them, with their time."""
    return [block for block in logs.blocks() if logs.arrays and all(_has(logs, rank, block) for rank in logs.arrays)]


def _has(logs: Logs, rank: int, block: BlockKey) -> bool:
    return block in logs.arrays[rank] and logs.span(rank, block) is not None


def block_times(setup: Setup, logs: Logs, rank: int, block: BlockKey) -> BlockTimes:
    """Return the times of a block that the rank kept and whose time stamps are known."""
    arrays = logs.arrays[rank][block]
    span = logs.span(rank, block)
    assert span is not None
    own = block in logs.spans.get(rank, {})
    seconds = None if own else implied_seconds(arrays, setup.batch_size, span.longest_seconds)
    times = BlockTimes(
        load=arrays.load,
        proc=arrays.proc,
        configured=_configured(setup, logs, arrays),
        measured=arrays.compute if logs.measured_compute else arrays.proc - arrays.load,
        total_seconds=span.seconds if seconds is None else seconds,
        batch_size=math.nan if setup.batch_size is None else setup.batch_size,
        exclude_start_steps=setup.exclude_start_steps,
        exclude_end_steps=setup.exclude_end_steps,
    )
    later = span.seconds_to_checkpoint
    return times if later is None or seconds is not None else _nearer(times, later, arrays)


def _nearer(times: BlockTimes, later_seconds: float, arrays: BlockArrays) -> BlockTimes:
    """Return the block up to its first end or up to its checkpoint, whichever gives the rank's own samples/s."""
    ends = (times, replace(times, total_seconds=later_seconds))
    printed = arrays.printed_samples_per_second
    return times if printed is None else min(ends, key=lambda one: _apart(one, printed))


def _apart(times: BlockTimes, printed: float) -> float:
    return min(abs(one.samples_per_second - printed) for one in rated(times).values())


def implied_seconds(arrays: BlockArrays, batch_size: int | None, longest_seconds: float) -> float | None:
    """Return the block's time that v1.0's samples/s of the rank implies; None unless it lies where it can.

    Only rank 0 kept stamps in v0.5 and v1.0, and the ranks do not begin a block at the same moment.
    """
    rate = arrays.printed_samples_per_second
    if batch_size is None or rate is None or rate <= 0:
        return None
    seconds = arrays.steps * batch_size / rate
    within = float(arrays.proc.sum()) <= seconds <= longest_seconds
    return seconds if within and math.isfinite(longest_seconds) else None


def _configured(setup: Setup, logs: Logs, arrays: BlockArrays) -> Seconds:
    """Return the configured seconds of each step: the file's own, or the setting (of drawn times the mean)."""
    if not logs.measured_compute:
        return arrays.compute
    return np.full(arrays.steps, math.nan if setup.computation_seconds is None else setup.computation_seconds)


def _formula(name: str, per_epoch: Mapping[int, list[list[BlockTimes]]], scale: float, drawn: bool) -> Formula:
    """Combine as DLIO does: blocks by their steps, AU's mean over ranks, the sum of the ranks' samples/s."""
    found = [_epoch(name, blocks) for blocks in per_epoch.values()]
    credited = not (name == "dlio_v1" and drawn)  # the mean of drawn times is not what DLIO credits
    return Formula(
        au_by_epoch=tuple(one.au_percent for one in found) if credited else (),
        samples_per_second_by_epoch=tuple(one.samples_per_second * scale for one in found),
    )


def _epoch(name: str, blocks: list[list[BlockTimes]]) -> Rated:
    """Return AU (mean over ranks) and samples/s (their sum) of one epoch's blocks, each a list over ranks."""
    weights = [float(parts[0].steps) for parts in blocks]
    ranks = [[rated(parts[index])[name] for parts in blocks] for index in range(len(blocks[0]))]
    au = [_average([one.au_percent for one in rank], weights) for rank in ranks]
    rate = [_average([one.samples_per_second for one in rank], weights) for rank in ranks]
    return Rated(math.fsum(au) / len(au), math.fsum(rate))


def _average(values: list[float], weights: list[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)


def _shares(lost: Loss, slower_seconds: float | None) -> dict[str, float]:
    parts = {name: getattr(lost, name) for name in ("first_step", "load", "oversleep", "barrier")}
    if slower_seconds is not None:
        parts["slower_rank"] = slower_seconds
        parts["barrier"] -= slower_seconds
    shares = {name: 100 * seconds / lost.total for name, seconds in parts.items()}
    return shares if all(map(math.isfinite, shares.values())) else {}


def _mean(values: tuple[float, ...]) -> float | None:
    mean = math.fsum(values) / len(values) if values else math.nan
    return mean if math.isfinite(mean) else None


def per_rank_blocks(setup: Setup, logs: Logs) -> Iterator[tuple[int, BlockKey, BlockArrays, dict[str, Rated]]]:
    """Yield every block of every rank that kept arrays and a time, with its numbers by each formula."""
    for rank, blocks in logs.arrays.items():
        for block, arrays in blocks.items():
            if logs.span(rank, block) is not None:
                yield rank, block, arrays, rated(block_times(setup, logs, rank, block))
