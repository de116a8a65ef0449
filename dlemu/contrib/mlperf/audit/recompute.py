"""Recomputes a run's numbers: exactly from the step times of its ranks, or as bounds from the times of its blocks.

DLIO's formulas are in `dlemu.metrics.au`. AU of whole epochs is total computation over total time of all epochs
together, as the text of v1.0's rules defines it ("total_compute_time/total_benchmark_running_time"); the texts of v2.0
and v3.0 leave out the I/O of the first step (https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

import numpy as np

from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.step_files import BlockArrays, BlockKey, Logs
from dlemu.extend import au as dlio_formulas

FORMULAS = ("dlio_v1", "dlio", "dlio_v3", "dlio_fork")
"""The formulas of AU and samples/s, by version of DLIO (docs/audit.md); columns have these names."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A run's AU and samples/s by one formula: each epoch's, and their mean."""

    au_by_epoch: tuple[float, ...] = ()
    samples_per_second_by_epoch: tuple[float, ...] = ()

    @property
    def au_percent(self) -> float | None:
        """Mean over epochs; None if an epoch's number is not finite, or there is none."""
        return _mean(self.au_by_epoch)

    @property
    def samples_per_second(self) -> float | None:
        return _mean(self.samples_per_second_by_epoch)


@dataclass(frozen=True)
class Bounds:
    """The results that DLIO's formulas can give for blocks of known times."""

    au_least_percent: float
    samples_per_second_least: float
    samples_per_second_most: float


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """The numbers of a run, recomputed from its files."""

    basis: str
    """`steps` of all ranks, `some ranks` (their steps, scaled up), `blocks` (only time stamps), or `nothing`."""
    ranks_kept: int = 0
    epochs: int = 0
    steps_per_epoch: int | None = None
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    au_whole_percent: float | None = None
    bounds: Bounds | None = None  # set if only block times were kept
    loss_percent: Mapping[str, float] = field(default_factory=dict)
    """Cause -> share of the time of all blocks; the shares add up to 100 - `au_whole_percent`."""


NOTHING = Recomputed(basis="nothing")


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Durations by the time stamps of the lowest rank that kept some; empty without time stamps."""

    total_seconds: float | None = None
    """From the start of the first block to the end of the last, including checkpoints and evaluations in between."""
    training_seconds_by_epoch: tuple[float, ...] = ()
    """Total time of each epoch's blocks."""
    first_batch_seconds_by_epoch: tuple[float, ...] = ()
    """The slowest rank's wait for the first batch of each epoch; empty unless the steps of every epoch were kept."""


def run_times(logs: Logs) -> RunTimes:
    spans = logs.lowest_rank_spans
    if not spans:
        return RunTimes()
    epochs = sorted({epoch for epoch, _ in spans})
    training_seconds = [sum(span.seconds for (number, _), span in spans.items() if number == epoch) for epoch in epochs]
    first_waits = []
    for epoch in epochs:
        waits = [blocks[epoch, 1].load[0] for blocks in logs.arrays.values() if (epoch, 1) in blocks]
        if waits:
            first_waits.append(float(max(waits)))
    start_us = min(span.start_us for span in spans.values())
    end_us = max(span.end_us for span in spans.values())
    return RunTimes(
        total_seconds=(end_us - start_us) / 1e6,
        training_seconds_by_epoch=tuple(training_seconds),
        first_batch_seconds_by_epoch=tuple(first_waits) if len(first_waits) == len(epochs) else (),
    )


def from_steps(setup: Setup, accelerators: int | None, logs: Logs) -> Recomputed:
    """Recompute a run from its ranks' step times; return NOTHING unless all ranks with steps have a block in common.

    If fewer ranks than `accelerators` kept their steps, samples/s are scaled up.
    """
    ranks_kept = len(logs.arrays)
    ranks = accelerators or ranks_kept
    shared_blocks = [
        key
        for key in logs.blocks()
        if all(key in arrays and logs.span(rank, key) is not None for rank, arrays in logs.arrays.items())
    ]
    if not ranks_kept or not shared_blocks:
        return NOTHING
    is_complete = ranks_kept >= ranks
    blocks = {key: [rank_block(setup, logs, rank, key) for rank in logs.arrays] for key in shared_blocks}
    times_by_block = [[block.times for block in rank_blocks] for rank_blocks in blocks.values()]
    all_times = list(chain.from_iterable(times_by_block))
    total_seconds = sum(times.total for times in all_times)
    lost_seconds = _lost_seconds(times_by_block, has_all_ranks=is_complete)
    shares = {cause: 100 * seconds / total_seconds for cause, seconds in lost_seconds.items()}
    epochs = sorted({epoch for epoch, _ in shared_blocks})
    by_epoch = {number: [blocks[key] for key in shared_blocks if key[0] == number] for number in epochs}
    au_whole = 100 * sum(float(times.configured.sum()) for times in all_times) / total_seconds
    return Recomputed(
        basis="steps" if is_complete else "some ranks",
        ranks_kept=ranks_kept,
        epochs=len(epochs),
        steps_per_epoch=sum(rank_blocks[0].times.steps for rank_blocks in by_epoch[epochs[0]]),
        formulas={name: _formula(name, by_epoch, ranks / ranks_kept, setup.is_random) for name in FORMULAS},
        au_whole_percent=au_whole if math.isfinite(au_whole) else None,
        loss_percent=shares if all(map(math.isfinite, shares.values())) else {},
    )


@dataclass(frozen=True)
class RankBlock:
    """One block of one rank."""

    times: dlio_formulas.BlockTimes
    """If only rank 0 kept time stamps, the `total` of another rank follows from the samples/s that it printed."""
    by_formula: Mapping[str, dlio_formulas.Rated]
    """AU and samples/s by each of FORMULAS; NaN without a batch size."""


def rank_block(setup: Setup, logs: Logs, rank: int, block: BlockKey) -> RankBlock:
    """Return one block of a rank; requires the rank's steps, and time stamps of the block by any rank.

    If a checkpoint follows, the block ends at its own end or at the start of the checkpoint, whichever fits the printed
    samples/s better.
    """
    arrays = logs.arrays[rank][block]
    span = logs.span(rank, block)
    assert span is not None
    if block not in logs.spans.get(rank, {}):
        implied = _implied_seconds(arrays, setup.batch_size, span.longest_seconds)
        if implied is not None:
            return _block_lasting(implied, setup, logs, arrays)
    to_end = _block_lasting(span.seconds, setup, logs, arrays)
    printed = arrays.printed_samples_per_second
    if span.seconds_to_checkpoint is None or printed is None:
        return to_end
    to_checkpoint = _block_lasting(span.seconds_to_checkpoint, setup, logs, arrays)
    return min(
        (to_end, to_checkpoint),
        key=lambda block: min(abs(rated.samples_per_second - printed) for rated in block.by_formula.values()),
    )


def _block_lasting(total_seconds: float, setup: Setup, logs: Logs, arrays: BlockArrays) -> RankBlock:
    step_seconds = math.nan if setup.computation_seconds is None else setup.computation_seconds
    times = dlio_formulas.BlockTimes(
        load=arrays.load,
        proc=arrays.proc,
        # Of random times, only the mean is configured.
        configured=np.full(arrays.steps, step_seconds) if logs.measured_compute else arrays.compute,
        measured=arrays.compute if logs.measured_compute else arrays.proc - arrays.load,
        total=total_seconds,
    )
    excluded = setup.exclude_start_steps, setup.exclude_end_steps
    batch_size = math.nan if setup.batch_size is None else setup.batch_size
    by_formula = {
        "dlio_v1": dlio_formulas.rate_v1(times, batch_size),
        "dlio": dlio_formulas.rate_v2(times, *excluded, batch_size),
        "dlio_v3": dlio_formulas.rate_v3(times, *excluded, batch_size),
        "dlio_fork": dlio_formulas.rate_fork(times, *excluded, batch_size),
    }
    return RankBlock(times, by_formula)


def _implied_seconds(arrays: BlockArrays, batch_size: int | None, longest_seconds: float) -> float | None:
    """Return the time of a block by the samples/s that the rank printed; None if that time is unknown or impossible.

    In v0.5 and v1.0 only rank 0 kept time stamps, and ranks do not begin a block at the same moment.
    """
    rate = arrays.printed_samples_per_second
    if batch_size is None or rate is None or rate <= 0 or not math.isfinite(longest_seconds):
        return None
    seconds = arrays.steps * batch_size / rate
    return seconds if float(arrays.proc.sum()) <= seconds <= longest_seconds else None


def _formula(name: str, by_epoch: Mapping[int, list[list[RankBlock]]], scale: float, is_random: bool) -> Formula:
    """Return a formula's numbers; `by_epoch` has for each epoch its blocks, and for each block all ranks."""
    epochs = []
    for blocks in by_epoch.values():
        steps = [rank_blocks[0].times.steps for rank_blocks in blocks]
        rated_by_rank = [[block.by_formula[name] for block in rank_blocks] for rank_blocks in zip(*blocks, strict=True)]
        epochs.append(dlio_formulas.over_ranks([dlio_formulas.over_blocks(rated, steps) for rated in rated_by_rank]))
    has_au = name != "dlio_v1" or not is_random  # dlio_v1 counts configured times; random ones are unknown
    return Formula(
        au_by_epoch=tuple(epoch.au_percent for epoch in epochs) if has_au else (),
        samples_per_second_by_epoch=tuple(epoch.samples_per_second * scale for epoch in epochs),
    )


def _mean(values: tuple[float, ...]) -> float | None:
    mean = math.fsum(values) / len(values) if values else math.nan
    return mean if math.isfinite(mean) else None


def _lost_seconds(blocks: Sequence[Sequence[dlio_formulas.BlockTimes]], *, has_all_ranks: bool) -> dict[str, float]:
    """Return the ranks' seconds beyond the configured computation, by cause; `blocks` has the ranks of each block.

    - `first_step`: the first step of each block, less its computation
    - `load`: waits for the batches of the other steps
    - `oversleep`: computation of the other steps beyond the configured time
    - `slower_rank`: waits for the slowest rank between two steps; left out unless all ranks kept their steps
    - `barrier`: the rest of the blocks' time outside of their steps
    """
    all_times = list(chain.from_iterable(blocks))
    seconds: dict[str, float] = {
        "first_step": sum(float(times.proc[0] - times.configured[0]) for times in all_times),
        "load": sum(float(times.load[1:].sum()) for times in all_times),
        "oversleep": sum(float((times.proc - times.load - times.configured)[1:].sum()) for times in all_times),
        "barrier": sum(times.total - float(times.proc.sum()) for times in all_times),
    }
    if has_all_ranks:
        slower = sum(_waits_for_slower_seconds([times.proc for times in ranks]) for ranks in blocks)
        seconds["barrier"] -= slower
        seconds["slower_rank"] = slower
    return seconds


def _waits_for_slower_seconds(procs: Sequence[dlio_formulas.Times]) -> float:
    """Return how long a block's ranks, all together, waited for the slowest rank from the second step on."""
    steps = min(len(proc) for proc in procs)
    table = np.stack([proc[1:steps] for proc in procs])
    return float((table.max(axis=0) - table).sum()) if table.size else 0.0


def from_blocks(setup: Setup, printed: Printed, logs: Logs) -> Recomputed:
    """Recompute a run from its time stamps, and from the number of steps that its settings give."""
    spans = logs.lowest_rank_spans
    if not spans:
        return NOTHING
    epochs = sorted({epoch for epoch, _ in spans})
    spans_by_epoch = [[span for (epoch, _), span in spans.items() if epoch == number] for number in epochs]
    steps = planned_steps(setup, printed)
    step_seconds = setup.computation_seconds
    if printed.accelerators is None or steps is None or setup.batch_size is None:
        return Recomputed(basis="blocks", epochs=len(epochs), steps_per_epoch=steps)
    durations = [sum(span.seconds for span in blocks) for blocks in spans_by_epoch]
    step_samples = setup.batch_size * printed.accelerators
    formulas: dict[str, Formula] = {}
    if logs.measured_compute:
        max_dropped = max(2, setup.exclude_start_steps + max(1, setup.exclude_end_steps))
    else:  # DLIO of v0.5 and v1.0, by whose formula block times alone give the rate
        rates = tuple(steps * step_samples / seconds for seconds in durations)
        formulas["dlio_v1"] = Formula(samples_per_second_by_epoch=rates)
        max_dropped = 1
    bounds = None
    # There are no bounds for epochs of several blocks, as DLIO drops the first step of each, and none for random steps,
    # which may take less than their mean.
    if step_seconds is not None and len(spans) == len(epochs) and not setup.is_random:
        longest = [sum(span.longest_seconds for span in blocks) for blocks in spans_by_epoch]
        au_share = min(printed.au_percent or 100.0, 100.0) / 100
        bounds = _bounds(longest, steps, max_dropped, step_seconds, step_samples, au_share)
    return Recomputed(
        basis="blocks",
        epochs=len(epochs),
        steps_per_epoch=steps,
        formulas=formulas,
        au_whole_percent=None if step_seconds is None else 100 * steps * step_seconds * len(epochs) / sum(durations),
        bounds=bounds,
    )


def planned_steps(setup: Setup, printed: Printed) -> int | None:
    """Return the steps of an epoch: floor(samples / (batch x ranks)), at most total_training_steps; else None."""
    files, samples = printed.num_files or setup.num_files, printed.samples_per_file or setup.samples_per_file
    if files is None or samples is None or setup.batch_size is None or printed.accelerators is None:
        return None
    steps = files * samples // (setup.batch_size * printed.accelerators)
    return min(steps, setup.total_training_steps or steps) or None


def _bounds(
    longest: Sequence[float], steps: int, max_dropped: int, step_seconds: float, step_samples: int, au_share: float
) -> Bounds | None:
    """Return the bounds for epochs of `steps` steps, each with `step_samples`; None if the formulas count no step.

    An epoch took at most `longest` seconds, and the formulas count at least `counted` = steps - max_dropped steps:

    - Least AU, if the dropped steps waited for nothing: counted x step_seconds / (longest - max_dropped x step_seconds)
    - Least samples/s, if the counted steps took the whole epoch: counted x step_samples / longest
    - Most samples/s, if all samples count, but only the counted steps' time, which follows from the printed AU:
      steps x step_samples / (counted x step_seconds / au_share)
    """
    counted = steps - max_dropped
    if counted < 1:
        return None
    longest = [max(seconds, steps * step_seconds) for seconds in longest]
    computed_seconds = counted * step_seconds
    return Bounds(
        au_least_percent=100 * fmean(computed_seconds / (seconds - max_dropped * step_seconds) for seconds in longest),
        samples_per_second_least=step_samples * fmean(counted / seconds for seconds in longest),
        samples_per_second_most=step_samples * steps / computed_seconds * au_share,
    )
