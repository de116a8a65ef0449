"""What removing one cause alone would bring: the run's own batches, replayed with one thing changed.

What each batch took of the storage is known from the run: the share of the storage's speed that a reader had while it
was read. Played again in the event model of `dlemu predict`, on the same speed, the batches come when they came; with
a deeper queue, other readers, a storage without end or a core for everybody they come earlier. So nothing is drawn, and
where the model does not come to the AU that was measured, nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from datagen.registry import built_in
from dlemu.config.loader_settings import LOADERS
from dlemu.jobs.training.measured import Facts, MeasuredTraining
from dlemu.jobs.training.plan import prefetch_per_worker
from dlemu.jobs.training.prediction.calibration import (
    Reads,
    between_batches,
    estimate_curve,
    host_costs,
    room_since,
    stamps,
    work_of_reads,
)
from dlemu.jobs.training.prediction.curve import Curve, CurvePoint, rates
from dlemu.jobs.training.prediction.event_model import HostCosts, Scene, simulate
from dlemu.loaders.traits_base import LoaderTraits
from dlemu.metrics.au import au_percent
from dlemu.metrics.causes import mean_ready_behind, worker_time
from dlemu.metrics.limit import Cause, DeeperQueue, Scaling
from dlemu.metrics.over_time import Floats
from dlemu.metrics.rows import Rows, StepTable
from dlemu.metrics.t_interval import FEWEST

MAX_ROWS = 20_000
"""Rank-steps that are played again at most, from the run's first on: some tenths of a second for each cause."""
ALIKE_PERCENT = 5.0
"""Points by which the AU that is played again may differ from what was measured."""
DEEPER = (2, 4, 8)
"""Times the batches ahead that are tried; the fewest that bring as much as more do, but for `ENOUGH_PERCENT`."""
ENOUGH_PERCENT = 2.0  # points, as dlemu.metrics.limit.MIN_GAIN_PERCENT: a gain of less is not worth twice the memory
MORE_READERS = 4  # as the trial after a run (scaling.TIMES), which shows whether it holds
WITHOUT_END = 1e4
"""Times as fast is a storage that nobody waits for."""


@dataclass(frozen=True, kw_only=True)
class RepairedCauses:
    """What repairing would bring."""

    causes: tuple[Cause, ...] = ()
    deeper: DeeperQueue | None = None


def repair(run: MeasuredTraining, *, preprocesses: bool) -> RepairedCauses:
    """Return what removing each cause alone would bring; nothing where the model does not reproduce the measurement."""
    rows = _first(run.training)
    facts, reader = run.facts, run.facts.workload.reader
    if len(rows) < 2 * FEWEST or reader.read_threads < 1 or not (rows["app_bytes"] > 0).any():
        return RepairedCauses()
    played = _Played.of(rows, facts, preprocesses=preprocesses)
    measured, again = au_percent(rows), played.au_percent()
    if not abs(again - measured) <= ALIKE_PERCENT:  # not a number says nothing either
        return RepairedCauses()

    def au(other: _Played) -> float:
        return min(100.0, max(0.0, other.au_percent() + measured - again))

    causes = [
        Cause(what="storage", au_percent=au(replace(played, speed=WITHOUT_END))),
        Cause(what="host CPU", au_percent=au(replace(played, starves=False))),
        Cause(what="emulator", au_percent=au(replace(played, costs=_NO_COSTS))),
    ]
    by_prefetch = facts.batches_ahead == _batches_ahead(facts, reader.read_threads)
    causes += _other_readers(played, facts, au, by_prefetch=by_prefetch)
    deeper = None
    if by_prefetch and facts.batches_ahead < rows["step"].max():
        tried = [(times, au(replace(played, window=times * played.window))) for times in DEEPER]
        most = max(percent for _, percent in tried)
        times, percent = next(one for one in tried if one[1] >= most - ENOUGH_PERCENT)
        size = times * facts.batches_ahead
        deeper = DeeperQueue(
            prefetch_size=size,
            now_prefetch_size=facts.batches_ahead,
            ready_behind=mean_ready_behind(run.training),
        )
        setting = f"reader.prefetch_size={size}"
        causes.append(Cause(what="loader", where="prefetch", au_percent=percent, setting=setting))
    helps = (cause for cause in causes if cause.au_percent >= measured + 1)  # 1: what the model leaves out (AU_PERCENT)
    return RepairedCauses(causes=tuple(helps), deeper=deeper)


def _other_readers(played: _Played, facts: Facts, au: Callable[[_Played], float], *, by_prefetch: bool) -> list[Cause]:
    """Return what more readers would bring, and fewer and larger requests where they were tried."""
    reader, scaling = facts.workload.reader, facts.journal.scaling
    curve = _curve_of(scaling, played.curve, facts.ranks * reader.read_threads)

    def readers(threads: int) -> Cause:
        window = max(played.window, _batches_ahead(facts, threads)) if by_prefetch else played.window
        other = replace(played, workers=threads, window=window, curve=curve)
        setting = f"reader.read_threads={threads}"
        return Cause(what="loader", where="readers", au_percent=au(other), setting=setting)

    found = [readers(MORE_READERS * reader.read_threads)]
    if scaling is not None and scaling.fewer_readers:
        fewer = readers(max(1, scaling.fewer_readers // facts.ranks))
        found = [max(found[0], fewer, key=lambda cause: cause.au_percent)]
    if scaling is not None and scaling.larger_request_bytes:
        faster = replace(played, speed=scaling.larger_mb_per_second / max(scaling.same_mb_per_second, 1e-9))
        setting = f"reader.transfer_size={scaling.larger_request_bytes}"
        found.append(Cause(what="loader", where="requests", au_percent=au(faster), setting=setting))
    return found


def _batches_ahead(facts: Facts, threads: int) -> int:
    """Return the batches ahead of a loader that keeps as many for each reader; others have rules of their own."""
    return threads * prefetch_per_worker(facts.workload.reader.prefetch_size, threads)


def _curve_of(scaling: Scaling | None, curve: Curve, readers: int) -> Curve:
    """Return what other numbers of readers get, as they did right after the run, beside what the run's got in it."""
    if scaling is None or scaling.mb_per_second <= 0:
        return curve
    same = float(rates(curve, readers)[-1]) / 1e6
    tried = {
        scaling.fewer_readers: scaling.fewer_mb_per_second,
        scaling.readers: scaling.same_mb_per_second,
        scaling.more_readers: scaling.more_mb_per_second,
    }
    factor = same / scaling.same_mb_per_second
    points = sorted((count, rate) for count, rate in tried.items() if count)
    return tuple(CurvePoint(readers=count, mb_per_second=factor * rate) for count, rate in points)


def _first(rows: StepTable) -> Rows:
    """Return the steps of the first epochs, or of the first as many as may be played."""
    ranks, epochs = max(1, len(rows.by_rank)), rows.values("epoch")
    kept: list[int] = []
    count = 0
    for epoch in epochs:
        part = rows.of("epoch", (epoch,))
        if kept and count + len(part) > MAX_ROWS:
            break
        kept.append(epoch)
        count += len(part)
    first = rows.of("epoch", tuple(kept))
    return first[first["step"] <= max(FEWEST, MAX_ROWS // ranks)]


_NO_COSTS = HostCosts(hand_over_seconds=0.0, between_seconds=0.0, epoch_start_seconds=0.0, step_seconds=0.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Played:
    """A run as it may be played again. Arrays have one entry for each rank and step, an epoch each."""

    work_bytes: tuple[Floats, ...]
    """What each batch took of the storage: bytes that a reader was given meanwhile."""
    busy_seconds: tuple[Floats, ...]
    """What its worker did with a core, or slept in preprocessing."""
    starved_seconds: tuple[Floats, ...]
    compute_seconds: tuple[Floats, ...]
    curve: Curve
    speed: float = 1.0
    workers: int
    window: int
    in_turn: bool
    synchronous: bool
    starves: bool = True
    costs: HostCosts

    @classmethod
    def of(cls, rows: Rows, facts: Facts, *, preprocesses: bool) -> Self:
        """Return what was measured."""
        begin, end, origin = stamps(rows)
        spent = worker_time(rows, preprocesses)
        storage, starved = spent.storage / 1e9, spent.starved / 1e9
        busy = np.maximum(end - begin - storage - starved, 0.0)
        reads = Reads(begin, np.maximum(begin + storage, begin + 1e-9), rows["app_bytes"].astype(float))
        curve = estimate_curve(reads)
        gap = between_batches(rows, begin, end, room_since(rows, begin, facts.batches_ahead))
        work = work_of_reads(reads, curve)
        by_epoch = [_Grid(rows, int(epoch)) for epoch in np.unique(rows["epoch"])]
        reader = facts.workload.reader
        traits: LoaderTraits = built_in(
            LOADERS, reader.data_loader, "Traits", LoaderTraits
        )()  # the run may be received
        return cls(
            work_bytes=tuple(grid.of(work) for grid in by_epoch),
            busy_seconds=tuple(grid.of(busy) for grid in by_epoch),
            starved_seconds=tuple(grid.of(starved) for grid in by_epoch),
            compute_seconds=tuple(grid.of(rows["compute_ns"] / 1e9) for grid in by_epoch),
            curve=curve,
            workers=reader.read_threads,
            window=facts.batches_ahead,
            in_turn=traits.in_turn,
            synchronous=facts.workload.train.synchronous,
            costs=host_costs(rows, begin, origin, gap),
        )

    def au_percent(self) -> float:
        """Return the AU over whole epochs that comes out."""
        computed = sum(float(compute.sum()) for compute in self.compute_seconds)
        lasted = sum(self._seconds(epoch) * len(self.work_bytes[epoch]) for epoch in range(len(self.work_bytes)))
        return 100 * computed / lasted if lasted else float("nan")

    def _seconds(self, epoch: int) -> float:
        work, costs = self.work_bytes[epoch], self.costs
        busy, starved = self.busy_seconds[epoch], self.starved_seconds[epoch]
        scene = Scene(
            app_bytes=work,
            work_bytes=work,
            after_seconds=busy + starved * self.starves + costs.between_seconds,
            compute_seconds=self.compute_seconds[epoch],
            rate=self.speed * rates(self.curve, len(work) * self.workers),
            workers=self.workers,
            window=self.window,
            in_turn=self.in_turn,
            synchronous=self.synchronous,
            cores=np.inf,
            costs=replace(costs, hand_over_seconds=max(0.0, costs.hand_over_seconds - costs.between_seconds)),
        )
        return float(simulate(scene).free[-1])


class _Grid:
    """Where the rows of an epoch lie by rank and step."""

    def __init__(self, rows: Rows, epoch: int) -> None:
        self._own = np.flatnonzero(rows["epoch"] == epoch)
        _, self._rank = np.unique(rows["rank"][self._own], return_inverse=True)
        _, self._step = np.unique(rows["step"][self._own], return_inverse=True)

    def of(self, values: Floats) -> Floats:
        """Return values of all rows as an array of the shape (ranks, steps)."""
        grid = np.zeros((int(self._rank.max()) + 1, int(self._step.max()) + 1))
        grid[self._rank, self._step] = values[self._own]
        return grid
