"""Whether a deeper prefetch queue would have kept accelerators busy: replays a run's batches with deeper queues.

The event model of `dlemu predict` replays the measured batches. A batch needs as many bytes as one reader's share of
the storage's throughput delivered while it was read. The result counts only if the replay reproduces the measured AU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from datagen.registry import built_in
from dlemu.config.translate import LOADERS
from dlemu.jobs.training.measured import Facts, MeasuredTraining
from dlemu.jobs.training.prediction.calibration import throughputs
from dlemu.jobs.training.prediction.event_model import EpochInput, simulate
from dlemu.jobs.training.prediction.from_reads import Batches, Reads
from dlemu.jobs.training.scaling import preprocessing_sleeps
from dlemu.loaders.traits_base import LoaderTraits
from dlemu.metrics.au import au_percent
from dlemu.metrics.changes import find_stalls
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.loss import mean_ready_behind, worker_time
from dlemu.metrics.rows import StepTable, has_nonzero, sum_of
from dlemu.metrics.t_interval import FEWEST

MAX_ROWS = 20_000  # steps of all ranks to replay, from the start of the run; some tenths of a second per replay
_MIN_GAIN_PERCENT = 2.0  # points of AU that a deeper queue must gain for the queue to be the limit


def find_deeper_queue(run: MeasuredTraining, wanted_mb_per_second: float) -> Finding | None:
    """Return the finding that a deeper prefetch queue helps, as ready batches wait behind a slow one; else None.

    It helps if it lifts the AU to its threshold or removes half of the loss. A gain of `_MIN_GAIN_PERCENT` suffices if
    the same readers, tried after the run, got the threshold's share of what accelerators that never wait read.
    """
    facts, reader = run.facts, run.facts.workload.reader
    if not reader.read_threads or facts.batches_ahead != reader.read_threads * reader.prefetch_per_worker:
        return None  # `reader.prefetch_size` does not set the depth of the queue
    # The first epochs, at most MAX_ROWS; if the first epoch alone has more, its first steps
    table = run.training
    epochs_that_fit = np.searchsorted(np.cumsum([len(epoch) for epoch in table.by_epoch]), MAX_ROWS, side="right")
    rows = table.of("epoch", table.values("epoch")[: max(1, int(epochs_that_fit))])
    rows = rows[rows["step"] <= max(FEWEST, MAX_ROWS // max(1, len(rows.by_rank)))]
    if len(rows) < 2 * FEWEST or facts.batches_ahead >= rows["step"].max():
        return None
    batches_ready, measured_au = mean_ready_behind(rows), au_percent(rows)
    if batches_ready < 1 or not has_nonzero(rows, "app_bytes"):
        return None
    stalled_ns = 1e9 * sum(stall.seconds for stall in find_stalls(rows)) * len(rows.by_rank)
    if stalled_ns >= sum_of(rows, "wait_ns") / 2:
        return None  # a stall delays all batches alike
    epochs = _epoch_inputs(rows, facts)
    error = _replayed_au_percent(epochs) - measured_au
    if not abs(error) <= 5:  # points of AU; written with `not`, as either may be NaN
        return None
    au_by_factor = {factor: min(100.0, max(0.0, _replayed_au_percent(epochs, factor) - error)) for factor in (2, 4, 8)}
    # The smallest factor that gains about as much as the best: a little more AU is not worth twice the memory.
    sufficient_au = max(au_by_factor.values()) - _MIN_GAIN_PERCENT
    factor, deeper_au = next((factor, au) for factor, au in au_by_factor.items() if au >= sufficient_au)
    gain = deeper_au - measured_au
    if gain < _MIN_GAIN_PERCENT:
        return None
    threshold, scaling = 100 * facts.workload.metric.au, facts.journal.scaling
    helps = gain >= (100 - measured_au) / 2 or deeper_au >= threshold > measured_au
    if scaling is not None:
        tried_mb_per_second = min(scaling.mb_per_second, scaling.again_mb_per_second)
        helps = helps or tried_mb_per_second >= wanted_mb_per_second * threshold / 100
    if not helps:
        return None
    return Finding.of(
        Code.PREFETCH_TOO_SHALLOW,
        batches_ready=batches_ready,
        prefetch_size=factor * facts.batches_ahead,
        now_prefetch_size=facts.batches_ahead,
        au_percent=deeper_au,
        now_au_percent=measured_au,
    )


def _epoch_inputs(rows: StepTable, facts: Facts) -> list[EpochInput]:
    """Return the event model's input for the measured rows of each epoch."""
    batches, reader = Batches(rows, facts.batches_ahead), facts.workload.reader
    read_seconds = worker_time(rows, preprocessing_sleeps(facts.workload, rows)).storage / 1e9
    reads = Reads(batches.begin, batches.begin + read_seconds, rows["app_bytes"], rows["worker"])
    curve, costs = reads.curve(), batches.costs
    # Only a built-in loader is imported: the run may come from another host, with code that is not trusted here.
    traits: LoaderTraits = built_in(LOADERS, reader.data_loader, "Traits", LoaderTraits)()
    decode_seconds = np.maximum(batches.end - batches.begin - read_seconds, 0.0)
    columns = np.stack([reads.weighted_bytes(curve), decode_seconds, rows["compute_ns"] / 1e9])
    epochs = []
    for epoch in rows.values("epoch"):
        in_epoch = rows["epoch"] == epoch
        ranks, rank_index = np.unique(rows["rank"][in_epoch], return_inverse=True)
        steps, step_index = np.unique(rows["step"][in_epoch], return_inverse=True)
        grids = np.zeros((len(columns), len(ranks), len(steps)))  # for each column, a grid of ranks x steps
        grids[:, rank_index, step_index] = columns[:, in_epoch]
        weighted_bytes, decode, compute = grids
        epochs.append(
            EpochInput(
                weighted_bytes=weighted_bytes,
                decode_seconds=decode,
                compute_seconds=compute,
                rate=throughputs(curve, len(ranks) * reader.read_threads),
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
    """Return the AU over whole epochs with a queue `factor` times as deep, by the event model; NaN without steps."""
    compute_seconds = rank_seconds = 0.0
    for epoch in epochs:
        compute_seconds += float(epoch.compute_seconds.sum())
        epoch_seconds = float(simulate(replace(epoch, window=factor * epoch.window)).free[-1])
        rank_seconds += epoch_seconds * len(epoch.weighted_bytes)
    return 100 * compute_seconds / rank_seconds if rank_seconds else float("nan")
