"""The AU that a run would have without one cause of its loss: its own batches, replayed with one thing changed.

A batch's work is the bytes that a reader sharing the storage equally would have got while it was read. The event model
of `dlemu predict` replays it, without random draws; nothing is reported where it does not reproduce the measured AU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from datagen.registry import built_in
from dlemu.config.translate import LOADERS
from dlemu.jobs.training.measured import Facts, MeasuredTraining
from dlemu.jobs.training.plan import prefetch_per_worker
from dlemu.jobs.training.prediction.calibration import Curve, CurvePoint, rates
from dlemu.jobs.training.prediction.event_model import HostCosts, Scene, simulate
from dlemu.jobs.training.prediction.from_reads import Reads, batches_of, estimate_curve, work_of_reads
from dlemu.loaders.traits_base import LoaderTraits
from dlemu.metrics.au import au_percent
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import MIN_GAIN_PERCENT, MIN_GAIN_SHARE, Cause, Scaling
from dlemu.metrics.loss import mean_ready_behind, worker_time
from dlemu.metrics.rates import Floats
from dlemu.metrics.rows import Rows, StepTable
from dlemu.metrics.t_interval import FEWEST

MAX_ROWS = 20_000
"""Most rows (steps of all ranks) to replay, from the run's first on: that takes a few tenths of a second per cause."""
_MAX_DIFFERENCE_PERCENT = 5.0
"""Most points by which the AU of the replay may differ from the measured AU."""
_DEPTH_FACTORS = (2, 4, 8)
"""The prefetch queue is replayed with these multiples of its batches ahead; the smallest one whose AU is within
MIN_GAIN_PERCENT of the best is advised, as less is not worth twice the memory."""
_MORE_READERS = 4
"""Multiple of the readers to replay, as in the trial after the run (scaling.TIMES), which can confirm the result."""
_HELPS_PERCENT = 1.0  # the model's own error
"""Points of AU that a cause's removal must gain to be reported."""
_UNLIMITED_TIMES = 1e4
"""Speed of storage that nobody waits for, relative to the run's storage."""


Repair = Callable[[Scene], Scene]
"""Returns an epoch without a cause of its loss."""


def repair_causes(
    run: MeasuredTraining, *, preprocesses: bool, wanted_mb_per_second: float
) -> tuple[list[Cause], Finding | None]:
    """Return the AU without each cause whose removal raises it; nothing where the replay misses the measured AU.

    The second is the finding that a deeper queue gains enough to be the limit; None if it does not.
    `wanted_mb_per_second`: what accelerators that never wait would read.
    """
    rows = _first_steps(run.training)
    facts, reader = run.facts, run.facts.workload.reader
    if len(rows) < 2 * FEWEST or reader.read_threads < 1 or not (rows["app_bytes"] > 0).any():
        return [], None
    replay = _replay_of(rows, facts, preprocesses=preprocesses)
    measured, replayed = au_percent(rows), _au_percent(replay.epochs)
    if not abs(replayed - measured) <= _MAX_DIFFERENCE_PERCENT:  # or NaN
        return [], None

    def au(*epochs: Scene) -> float:
        return min(100.0, max(0.0, _au_percent(epochs) + measured - replayed))

    def without(repair: Repair) -> float:
        return au(*map(repair, replay.epochs))

    def faster(times: float) -> Repair:
        return lambda epoch: replace(epoch, rate=times * epoch.rate)

    by_prefetch = facts.batches_ahead == _batches_ahead(facts, reader.read_threads)
    scaling = facts.journal.scaling
    curve = _measured_curve(scaling, replay.curve, facts.ranks * reader.read_threads)

    def readers(threads: int) -> Cause:
        ahead = _batches_ahead(facts, threads) if by_prefetch else 0
        rate = rates(curve, facts.ranks * threads)
        gained = without(lambda epoch: replace(epoch, workers=threads, window=max(epoch.window, ahead), rate=rate))
        return Cause(what="loader", au_percent=gained, setting=f"reader.read_threads={threads}")

    def without_emulator(epoch: Scene) -> Scene:
        nothing = HostCosts(hand_over_seconds=0.0, epoch_start_seconds=0.0, step_seconds=0.0)
        return replace(epoch, after_seconds=epoch.after_seconds - replay.between_seconds, costs=nothing)

    starving = zip(replay.epochs, replay.starved_seconds, strict=True)
    causes = [
        Cause(what="storage", au_percent=without(faster(_UNLIMITED_TIMES))),
        Cause(
            what="host CPU",
            au_percent=au(*(replace(each, after_seconds=each.after_seconds - lack) for each, lack in starving)),
        ),
        Cause(what="emulator", au_percent=without(without_emulator)),
    ]
    others = [readers(_MORE_READERS * reader.read_threads)]
    if scaling is not None and scaling.fewer_readers:
        others.append(readers(max(1, scaling.fewer_readers // facts.ranks)))
    causes.append(max(others, key=lambda cause: cause.au_percent))
    if scaling is not None and scaling.larger_request_bytes:
        gained = without(faster(scaling.larger_mb_per_second / max(scaling.same_mb_per_second, 1e-9)))
        setting = f"reader.transfer_size={scaling.larger_request_bytes}"
        causes.append(Cause(what="loader", au_percent=gained, setting=setting))
    deeper = None
    if by_prefetch and facts.batches_ahead < rows["step"].max():
        by_depth = {
            times: without(lambda epoch, times=times: replace(epoch, window=times * epoch.window))  # type: ignore[misc]
            for times in _DEPTH_FACTORS
        }
        enough_percent = max(by_depth.values()) - MIN_GAIN_PERCENT
        times = next(times for times, percent in by_depth.items() if percent >= enough_percent)
        size = times * facts.batches_ahead
        causes.append(Cause(what="loader", au_percent=by_depth[times], setting=f"reader.prefetch_size={size}"))
        if by_depth[times] >= measured + _HELPS_PERCENT:
            deeper = _deeper_queue(run, size, by_depth[times], wanted_mb_per_second)
    return [cause for cause in causes if cause.au_percent >= measured + _HELPS_PERCENT], deeper


def _deeper_queue(
    run: MeasuredTraining, prefetch_size: int, au_percent_deeper: float, wanted_mb_per_second: float
) -> Finding | None:
    """Return the finding that in-order batches wait for one slow read while later ones are ready; None if they don't.

    A deeper queue must lift the AU to its threshold, or remove half of the loss, or gain something where the same
    readers alone, right after the run, got what is needed.
    """
    ready, now = mean_ready_behind(run.training), au_percent(run.training)
    threshold, scaling = 100 * run.facts.workload.metric.au, run.facts.journal.scaling
    gained = au_percent_deeper - now
    enough = gained >= MIN_GAIN_SHARE * (100 - now) or au_percent_deeper >= threshold > now
    if scaling is not None:
        alone = min(scaling.mb_per_second, scaling.again_mb_per_second)
        enough = enough or alone >= wanted_mb_per_second * threshold / 100
    if ready < 1 or gained < MIN_GAIN_PERCENT or not enough:
        return None
    return Finding.of(
        Code.PREFETCH_TOO_SHALLOW,
        batches_ready=ready,
        prefetch_size=prefetch_size,
        now_prefetch_size=run.facts.batches_ahead,
        au_percent=au_percent_deeper,
        now_au_percent=now,
    )


def _batches_ahead(facts: Facts, threads: int) -> int:
    """Return how many batches a loader reads ahead that follows `reader.prefetch_size`; some loaders do not."""
    return threads * prefetch_per_worker(facts.workload.reader.prefetch_size, threads)


def _measured_curve(scaling: Scaling | None, curve: Curve, readers: int) -> Curve:
    """Return the rates by number of readers of the trials after the run, scaled to the rate in the run."""
    if scaling is None or scaling.mb_per_second <= 0:
        return curve
    rate_in_run = float(rates(curve, readers)[-1]) / 1e6
    trials = {
        scaling.fewer_readers: scaling.fewer_mb_per_second,
        scaling.readers: scaling.same_mb_per_second,
        scaling.more_readers: scaling.more_mb_per_second,
    }
    factor = rate_in_run / scaling.same_mb_per_second
    points = sorted((count, rate) for count, rate in trials.items() if count)
    return tuple(CurvePoint(readers=count, mb_per_second=factor * rate) for count, rate in points)


def _first_steps(rows: StepTable) -> StepTable:
    """Return the first epochs, MAX_ROWS rows at most; of a longer first epoch, its first steps."""
    rows_until = np.cumsum([len(epoch) for epoch in rows.by_epoch])
    fitting = max(1, int(np.searchsorted(rows_until, MAX_ROWS, side="right")))
    first = rows.of("epoch", rows.values("epoch")[:fitting])
    return first[first["step"] <= max(FEWEST, MAX_ROWS // max(1, len(rows.by_rank)))]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Replay:
    """A run to replay: its epochs, and what to take from them."""

    epochs: tuple[Scene, ...]
    """A batch's work is the bytes that a reader with an equal share of the storage got while it was read."""
    starved_seconds: tuple[Floats, ...]
    """The part of each epoch's `after_seconds` in which workers waited for a core, shape (ranks, steps)."""
    between_seconds: float
    """The part in which the emulator had not yet started a worker's next batch."""
    curve: Curve
    """Rate of the storage by number of readers."""


def _replay_of(rows: StepTable, facts: Facts, *, preprocesses: bool) -> _Replay:
    """Return the replay of measured rows, unchanged."""
    batches, spent = batches_of(rows, facts.batches_ahead), worker_time(rows, preprocesses)
    begin, between = batches.begin, batches.between_seconds
    storage, starved = spent.storage / 1e9, spent.starved / 1e9
    busy = np.maximum(batches.end - begin - storage - starved, 0.0)
    reads = Reads(begin, np.maximum(begin + storage, begin + 1e-9), rows["app_bytes"].astype(float))
    curve, costs = estimate_curve(reads), batches.costs
    costs = replace(costs, hand_over_seconds=max(0.0, costs.hand_over_seconds - between))
    reader = facts.workload.reader
    # Built-in ones only: the run may have come from another host.
    traits: LoaderTraits = built_in(LOADERS, reader.data_loader, "Traits", LoaderTraits)()

    def arranged(values: Floats) -> list[Floats]:
        return [_by_rank_and_step(rows, int(epoch), values) for epoch in np.unique(rows["epoch"])]

    works, compute = arranged(work_of_reads(reads, curve)), arranged(rows["compute_ns"] / 1e9)
    epochs = (
        Scene(
            work_bytes=work,
            after_seconds=after,
            compute_seconds=seconds,
            rate=rates(curve, len(work) * reader.read_threads),
            workers=reader.read_threads,
            window=facts.batches_ahead,
            in_turn=traits.in_turn,
            synchronous=facts.workload.train.synchronous,
            cores=np.inf,
            costs=costs,
        )
        for work, after, seconds in zip(works, arranged(busy + starved + between), compute, strict=True)
    )
    return _Replay(epochs=tuple(epochs), starved_seconds=tuple(arranged(starved)), between_seconds=between, curve=curve)


def _by_rank_and_step(rows: Rows, epoch: int, values: Floats) -> Floats:
    """Return an epoch's part of `values`, which has an entry per row, as an array of shape (ranks, steps)."""
    own = np.flatnonzero(rows["epoch"] == epoch)
    _, rank = np.unique(rows["rank"][own], return_inverse=True)
    _, step = np.unique(rows["step"][own], return_inverse=True)
    grid = np.zeros((int(rank.max()) + 1, int(step.max()) + 1))
    grid[rank, step] = values[own]
    return grid


def _au_percent(epochs: Iterable[Scene]) -> float:
    """Run the event model and return the AU over whole epochs."""
    computed = lasted = 0.0
    for epoch in epochs:
        computed += float(epoch.compute_seconds.sum())
        lasted += float(simulate(epoch).free[-1]) * len(epoch.work_bytes)
    return 100 * computed / lasted if lasted else float("nan")
