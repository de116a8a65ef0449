"""Blocks of steps as DLIO keeps them: lists of seconds from the host's stamps, AU and throughput computed from these.

Block times are cut to the microsecond that DLIO's time stamps have *before* anything is computed from them, so that
whoever recomputes AU from the written arrays and stamps gets the written value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dlemu.config.schema import Metric
from dlemu.emulator.steplog import EVALUATION, TRAINING, StepRows
from dlemu.metrics.au import blocks


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of one rank, or one evaluation."""

    epoch: int
    number: int
    evaluation: bool
    start_us: int
    """Microseconds since 1970, UTC."""
    end_us: int
    load: list[float]
    """Seconds from asking for each batch to having it."""
    proc: list[float]
    """Seconds from asking for each batch to the end of its computation."""
    compute: list[float]
    """Measured seconds of each computation."""
    au_percent: float
    samples_per_second: float

    @property
    def key(self) -> str:
        """DLIO's name of the block."""
        return "eval" if self.evaluation else f"block{self.number}"


@dataclass(frozen=True)
class Timing:
    """One block's lists of seconds and its length."""

    load: list[float]
    proc: list[float]
    compute: list[float]
    total_seconds: float

    def au_percent(self, settings: Metric) -> float:
        """Return sum(compute[s:e]) / (block - sum(proc[:s]) - sum(proc[e:])) in percent, 0 when nothing counts.

        Source: `compute_metrics_train` of dlio_benchmark's statscounter (2026-06). Steps are excluded from the ends of
        each block, which is DLIO's rule as long as `exclude_end_steps` is 0, its default.
        """
        end = len(self.compute) - settings.exclude_end_steps
        computed = sum(self.compute[settings.exclude_start_steps : max(0, end)])
        counted = self._counted_seconds(settings)
        return 100 * computed / counted if computed > 0 and counted > 0 else 0.0

    def samples_per_second(self, settings: Metric, batch_size: int) -> float:
        """Return (steps - 2) x batch / the AU's time, with DLIO's fixed 2; 0 for a block of 2 steps or fewer."""
        counted = self._counted_seconds(settings)
        return max(0, len(self.compute) - 2) / counted * batch_size if counted > 0 else 0.0

    def evaluated_per_second(self, batch_size: int) -> float:
        """Return steps x batch / block: evaluation excludes nothing (`compute_metrics_eval`)."""
        return len(self.compute) / self.total_seconds * batch_size if self.total_seconds > 0 else 0.0

    def _counted_seconds(self, settings: Metric) -> float:
        end = max(settings.exclude_start_steps, len(self.proc) - settings.exclude_end_steps)
        return self.total_seconds - sum(self.proc[: settings.exclude_start_steps]) - sum(self.proc[end:])


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Samples of one step on one rank."""

    train: int
    evaluation: int


def blocks_by_rank(
    rows: StepRows, settings: Metric, batches: Batches, wall_clock_offset_ns: int
) -> dict[int, list[Block]]:
    """Return each rank's training blocks and evaluations in the order of time.

    The clocks of other hosts are laid over rank 0's by the start of each block, which is one moment for all ranks.
    `wall_clock_offset_ns` is what makes nanoseconds since 1970 of rank 0's clock.
    """
    found = [
        (int(part["rank"][0]), phase == EVALUATION, part)
        for phase in (TRAINING, EVALUATION)
        for part in blocks(rows[rows["phase"] == phase])
    ]
    starts_ns = {
        (evaluation, int(part["epoch"][0]), int(part["block"][0])): int(part["free_ns"][0])
        for rank, evaluation, part in reversed(found)  # the lowest rank's stays
    }
    ranks: dict[int, list[Block]] = {}
    for rank, evaluation, part in found:
        start_ns = starts_ns[evaluation, int(part["epoch"][0]), int(part["block"][0])]
        shift_ns = start_ns - int(part["free_ns"][0]) + wall_clock_offset_ns
        ranks.setdefault(rank, []).append(_block(part, evaluation, settings, batches, shift_ns))
    return {rank: sorted(parts, key=_order) for rank, parts in sorted(ranks.items())}


def _order(block: Block) -> tuple[int, bool, int]:
    return block.epoch, block.evaluation, block.number


def _block(part: StepRows, evaluation: bool, settings: Metric, batches: Batches, shift_ns: int) -> Block:
    start_us = (int(part["asked_ns"][0]) + shift_ns) // 1000
    end_us = (int(part["met_ns"][-1]) + shift_ns) // 1000
    timing = Timing(
        load=_seconds(part, "asked_ns", "got_ns"),
        proc=_seconds(part, "asked_ns", "slept_ns"),
        compute=_seconds(part, "got_ns", "slept_ns"),
        total_seconds=(end_us - start_us) / 1e6,
    )
    if evaluation:
        rate = timing.evaluated_per_second(batches.evaluation)
    else:
        rate = timing.samples_per_second(settings, batches.train)
    return Block(
        epoch=int(part["epoch"][0]),
        number=int(part["block"][0]),
        evaluation=evaluation,
        start_us=start_us,
        end_us=end_us,
        load=timing.load,
        proc=timing.proc,
        compute=timing.compute,
        au_percent=timing.au_percent(settings),
        samples_per_second=rate,
    )


def _seconds(part: StepRows, since: str, until: str) -> list[float]:
    seconds: list[float] = ((part[until] - part[since]) / np.float64(1e9)).tolist()
    return seconds


def over_blocks(parts: list[Block]) -> Iterator[tuple[int, float, float]]:
    """Yield (epoch, AU in percent, samples/s) of one rank: the mean over each epoch's blocks, weighted by steps."""
    for epoch in sorted({block.epoch for block in parts}):
        in_epoch = [block for block in parts if block.epoch == epoch]
        steps = [len(block.proc) for block in in_epoch]
        au = np.average([block.au_percent for block in in_epoch], weights=steps)
        rate = np.average([block.samples_per_second for block in in_epoch], weights=steps)
        yield epoch, float(au), float(rate)
