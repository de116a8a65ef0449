"""Whether a deeper prefetch queue would have kept accelerators busy: a run's own batches, replayed with longer queues.

A batch's work is the bytes that a reader sharing the storage equally would have got while the batch was read. The event
model of `dlemu predict` replays the batches, without random draws; it must reproduce the measured AU, else its answer
for deeper queues is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from datagen.registry import built_in
from dlemu.config.translate import LOADERS
from dlemu.jobs.training.measured import Facts, MeasuredTraining
from dlemu.jobs.training.prediction.calibration import rates
from dlemu.jobs.training.prediction.event_model import EpochInput, simulate
from dlemu.jobs.training.prediction.from_reads import Batches, Reads
from dlemu.jobs.training.scaling import preprocessing_sleeps
from dlemu.loaders.traits_base import LoaderTraits
from dlemu.metrics.au import au_percent
from dlemu.metrics.changes import find_stalls
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.loss import mean_ready_behind, worker_time
from dlemu.metrics.rows import StepTable, is_any, sum_of
from dlemu.metrics.t_interval import FEWEST

MAX_ROWS = 20_000
"""Most rows (steps of all ranks) to replay, from the run's first on: that takes a few tenths of a second per depth."""
_MIN_GAIN_PERCENT = 2.0
"""A deeper queue must gain this many points of AU to be the limit."""


def find_deeper_queue(run: MeasuredTraining, wanted_mb_per_second: float) -> Finding | None:
    """Return the finding that in-order batches wait for one slow read while later ones are ready; None if they don't.

    A deeper queue must lift the AU to its threshold, or remove half of the loss, or gain something where the same
    readers alone, right after the run, got `wanted_mb_per_second`: what accelerators that never wait would read.
    """
    facts, reader, whole = run.facts, run.facts.workload.reader, run.training
    threads = reader.read_threads
    if not threads or facts.batches_ahead != threads * reader.prefetch_per_worker:
        return None  # the queue does not follow `reader.prefetch_size`
    # The first epochs, MAX_ROWS rows at most; of a longer first epoch, its first steps
    fitting = np.searchsorted(np.cumsum([len(epoch) for epoch in whole.by_epoch]), MAX_ROWS, side="right")
    rows = whole.of("epoch", whole.values("epoch")[: max(1, int(fitting))])
    rows = rows[rows["step"] <= max(FEWEST, MAX_ROWS // max(1, len(rows.by_rank)))]
    if len(rows) < 2 * FEWEST or facts.batches_ahead >= rows["step"].max():
        return None
    batches_ready, measured = mean_ready_behind(rows), au_percent(rows)
    if batches_ready < 1 or not is_any(rows, "app_bytes"):
        return None
    stalled_ns = 1e9 * sum(stall.seconds for stall in find_stalls(rows)) * len(rows.by_rank)
    if stalled_ns >= sum_of(rows, "wait_ns") / 2:
        return None  # the batches in work during a stall all end after it: none holds the others back
    epochs = _epochs_of(rows, facts)
    replayed = _replayed_au_percent(epochs)
    if not abs(replayed - measured) <= 5:  # points of AU, or NaN
        return None
    au_by_factor = {
        factor: min(100.0, max(0.0, _replayed_au_percent(epochs, factor) + measured - replayed)) for factor in (2, 4, 8)
    }
    # The smallest factor that gains about as much as the best: less gain is not worth twice the memory.
    enough = max(au_by_factor.values()) - _MIN_GAIN_PERCENT
    factor, deeper = next((factor, au) for factor, au in au_by_factor.items() if au >= enough)
    if deeper - measured < _MIN_GAIN_PERCENT:
        return None
    threshold, scaling = 100 * facts.workload.metric.au, facts.journal.scaling
    is_limit = deeper - measured >= (100 - measured) / 2 or deeper >= threshold > measured
    if scaling is not None:
        readers_alone = min(scaling.mb_per_second, scaling.again_mb_per_second)
        is_limit = is_limit or readers_alone >= wanted_mb_per_second * threshold / 100
    if not is_limit:
        return None
    return Finding.of(
        Code.PREFETCH_TOO_SHALLOW,
        batches_ready=batches_ready,
        prefetch_size=factor * facts.batches_ahead,
        now_prefetch_size=facts.batches_ahead,
        au_percent=deeper,
        now_au_percent=measured,
    )


def _epochs_of(rows: StepTable, facts: Facts) -> list[EpochInput]:
    """Return the epochs of measured rows as they were, to replay."""
    batches, reader = Batches(rows, facts.batches_ahead), facts.workload.reader
    storage = worker_time(rows, preprocessing_sleeps(facts.workload, rows)).storage / 1e9
    reads = Reads(batches.begin, batches.begin + storage, rows["app_bytes"], rows["worker"])
    curve, costs = reads.curve(), batches.costs
    # Built-in ones only: the run may have come from another host.
    traits: LoaderTraits = built_in(LOADERS, reader.data_loader, "Traits", LoaderTraits)()
    after = np.maximum(batches.end - batches.begin - storage, 0.0)
    columns = np.stack([reads.work_bytes(curve), after, rows["compute_ns"] / 1e9])
    epochs = []
    for epoch in rows.values("epoch"):
        of_epoch = rows["epoch"] == epoch
        ranks, rank_index = np.unique(rows["rank"][of_epoch], return_inverse=True)
        steps, step_index = np.unique(rows["step"][of_epoch], return_inverse=True)
        grid = np.zeros((len(columns), len(ranks), len(steps)))
        grid[:, rank_index, step_index] = columns[:, of_epoch]
        epochs.append(
            EpochInput(
                work_bytes=grid[0],
                decode_seconds=grid[1],
                compute_seconds=grid[2],
                rate=rates(curve, len(ranks) * reader.read_threads),
                workers=reader.read_threads,
                window=facts.batches_ahead,
                in_turn=traits.in_turn,
                synchronous=facts.workload.train.synchronous,
                cores=np.inf,
                costs=costs,
            )
        )
    return epochs


def _replayed_au_percent(epochs: Sequence[EpochInput], factor: int = 1) -> float:
    """Run the event model with a queue `factor` times as deep, and return the AU over whole epochs."""
    compute_seconds = rank_seconds = 0.0
    for epoch in epochs:
        compute_seconds += float(epoch.compute_seconds.sum())
        epoch_seconds = float(simulate(replace(epoch, window=factor * epoch.window)).free[-1])
        rank_seconds += epoch_seconds * len(epoch.work_bytes)
    return 100 * compute_seconds / rank_seconds if rank_seconds else float("nan")
