"""Calibration from measured reads: of a run's steps, or of a probe with the workload's own access pattern."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.pattern import Level
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.batches import bytes_by_file, planned_bytes
from dlemu.jobs.training.prediction.calibration import Calibration, Curve, CurvePoint, smoothed, throughputs
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.metrics.au import kept_rows, total_ns
from dlemu.metrics.demand import row_group_reads
from dlemu.metrics.rates import Floats, Intervals, during, under_way
from dlemu.metrics.rows import StepTable, has_nonzero
from dlemu.metrics.t_interval import FEWEST, estimate

# The storage was at its limit if accelerators waited for data at least this share of the time, or if workers waited
# less than this share of theirs for room in the prefetch queue.
WAITING_SHARE = 0.02
MIN_DECODE_SHARE = 0.05  # if workers decode for less than this share of their time, decoding is counted as reading
CONFIDENCE, MAX_HALF_WIDTH_PERCENT = 0.95, 50.0  # 100 % would reach down to a storage without throughput
WORK_QUANTILES = 256  # by which the work of reads is stored; keeps tails of 1 read in 256
WINDOW_SECONDS, MAX_WINDOWS = 0.5, 240  # 240 of half a second: the two minutes of a probe
RUN_LENGTHS = (32, 16, 8, 4, 2)  # successive reads over whose work means are taken, to find what averages out


class Reads:
    """Reads of batches, from which the storage's curve and the reads' *work* are estimated.

    Arrays have one entry per read; `begin` and `end` are seconds on one clock. Bytes are spread evenly over a read.
    A read's work is what it needs of the storage per byte, relative to the mean of all reads.
    """

    def __init__(self, begin: Floats, end: Floats, app_bytes: NDArray[np.int64], reader: NDArray[np.int64]) -> None:
        self._begin, self._end, self._bytes = begin, np.maximum(end, begin + 1e-9), app_bytes.astype(float)
        self._reader = reader
        # The times at which reads begin or end; between each two of these, the number of active reads, and the seconds
        self._edges, self._active, self._lengths = under_way(self._begin, self._end)
        first, last = float(self._edges[0]), float(self._edges[-1])
        self._windows = np.linspace(first, last, max(2, min(MAX_WINDOWS, int((last - first) / WINDOW_SECONDS))) + 1)
        self._window_bytes = np.diff(Intervals(self._begin, self._end, self._windows).cumulative(self._bytes))

    def curve(self) -> Curve:
        """Return the throughput by number of readers: a straight line from 0 up to a knee, and constant from there on.

        For each knee, least squares fit the height of the constant part to the windows' bytes. Of the knees that fit
        about as well as the best, the lowest is taken: at 2 if 1 reader gets 100 MB/s, 2 get 200 and 4 get 200.
        """
        max_readers, window_bytes = int(self._active.max()), self._window_bytes
        # 24 knees: up to 256 readers each is 1.27 times the knee before.
        knees = sorted({min(max_readers, round(knee)) for knee in np.geomspace(1, max_readers, min(max_readers, 24))})
        errors, heights = [], []
        for knee in knees:
            # Seconds at full throughput, of each window: half as many readers as the knee has get half of it.
            full_seconds = self._in_windows(np.minimum(self._active / knee, 1.0))
            height = float(window_bytes @ full_seconds) / max(float(full_seconds @ full_seconds), 1e-12)
            heights.append(height)
            errors.append(float(((window_bytes - height * full_seconds) ** 2).sum()))
        tolerated = min(errors) * 1.1 + 1e-6 * float((window_bytes**2).sum())  # an exact fit has rounding errors
        lowest = next(index for index, error in enumerate(errors) if error <= tolerated)
        knee, height = knees[lowest], heights[lowest] / 1e6
        points = {1: height / knee, knee: height, max_readers: height}
        return tuple(CurvePoint(*point) for point in sorted(points.items()))

    def half_width_percent(self, curve: Curve) -> float:
        """Return the half width of the 95 % interval of a window's bytes, in percent of the bytes by the curve."""
        expected = self._in_windows(self._throughput(curve))
        is_busy = expected >= 0.5 * np.median(expected)  # the other windows are at the end of an epoch
        percent = 100 * self._window_bytes[is_busy] / expected[is_busy]
        return min(MAX_HALF_WIDTH_PERCENT, estimate(percent, CONFIDENCE).half_width_percent)

    def work_bytes(self, curve: Curve) -> Floats:
        """Return the work of each read as bytes: those that one reader gets, by the curve, during the read."""
        return self._in_reads(self._throughput(curve) / np.maximum(self._active, 1))

    @cached_property
    def work(self) -> Floats:
        """Each read's work, with mean 1: bytes that an average active reader got during it, per byte of the read."""
        active, lengths, bytes_per_second = self._active, self._lengths, self._bytes / (self._end - self._begin)
        changes = np.zeros(len(self._edges))  # of the rate of all active reads together, at each edge
        np.add.at(changes, np.searchsorted(self._edges, self._begin), bytes_per_second)
        np.add.at(changes, np.searchsorted(self._edges, self._end), -bytes_per_second)
        ratio = self._in_reads(np.cumsum(changes)[:-1] / np.maximum(active, 1)) / self._bytes
        ratio /= ratio.mean()
        parallel = float((active * lengths).sum() / max(1e-9, float(lengths[active > 0].sum())))
        # The average of n readers includes the read itself, which hides 1/n of the variance. With hardly any parallel
        # reads, a read's own work can't be distinguished from the storage's speed.
        widening = math.sqrt(parallel / (parallel - 1)) if parallel > 1.5 else 1.0
        return np.asarray(1 + widening * (ratio - 1))

    def scaled_means(self, length: int) -> Floats:
        """Return the mean work of each `length` successive reads of a reader, times the square root of `length`.

        If the work of reads is independent, these values vary as much as the work of single reads.
        """
        means = [np.empty(0)]
        for reader in np.unique(self._reader):
            work = self.work[self._reader == reader]
            means.append(work[: len(work) // length * length].reshape(-1, length).mean(axis=1))
        return np.concatenate(means) * math.sqrt(length)

    def _throughput(self, curve: Curve) -> Floats:
        """Return the bytes/s of all active reads between each two edges, by the curve."""
        return np.asarray(throughputs(curve, int(self._active.max()))[self._active])

    def _in_windows(self, per_second: Floats) -> Floats:
        """Return a rate's total in each window; the rate has a value between each two edges."""
        return during(self._windows[:-1], self._windows[1:], self._edges, per_second * self._lengths)

    def _in_reads(self, per_second: Floats) -> Floats:
        """Return such a rate's total during each read."""
        return during(self._begin, self._end, self._edges, per_second * self._lengths)


class Batches:
    """When a run's batches were made and when the prefetch queue had room for them, from rows that all have reads.

    Arrays have one entry per row. Times are seconds on one clock for all ranks, which puts 1 s between epochs.
    `batches_ahead`: maximum number of batches that a rank's loader holds, complete or being made.
    """

    def __init__(self, rows: StepTable, batches_ahead: int) -> None:
        columns = []
        for part in rows.by_rank_and_epoch:  # in the order of the rows
            step, stamps = part["step"], np.stack([part[name] for name in ("started_ns", "finished_ns", "ready_ns")])
            begin, end, ready = (stamps - part["free_ns"].min()) / 1e9
            # The queue has room for batch k once the trainer has received batch k - `batches_ahead`: from the start for
            # the first batches, and never if that batch has no row.
            awaited = step - batches_ahead
            index = np.minimum(np.searchsorted(step, awaited), len(part) - 1)
            room = np.where(step[index] == awaited, ready[index], np.inf)
            columns.append(np.stack([begin, end, np.where(awaited <= 0, -np.inf, room)]))
        self._begin_in_epoch, end, room = np.concatenate(columns, axis=1)
        epochs, epoch_index = np.unique(rows["epoch"], return_inverse=True)
        epoch_seconds = np.zeros(len(epochs))
        np.maximum.at(epoch_seconds, epoch_index, end)
        epoch_start = (np.cumsum(epoch_seconds + 1.0) - epoch_seconds - 1.0)[epoch_index]  # of the epoch of each row
        self._rows, self.begin, self.end = rows, self._begin_in_epoch + epoch_start, end + epoch_start
        self._room = room + epoch_start  # when the queue had room for the batch
        # Pairs of batches that a worker made one after the other in an epoch: the index of each, and of the one before
        keys = [rows[name] for name in ("epoch", "rank", "worker")]
        order = np.lexsort((self.begin, *reversed(keys)))
        is_same_worker = np.all([np.diff(key[order]) == 0 for key in keys], axis=0)
        self._next, self._previous = order[1:][is_same_worker], order[:-1][is_same_worker]

    @property
    def full_queue_share(self) -> float:
        """Share of their time for which workers waited for room in the queue, and could have read more."""
        until = np.minimum(self._room, self.begin)[self._next]
        waited = np.clip(until - self.end[self._previous], 0, None).sum()
        return float(waited / (waited + (self.end - self.begin).sum()))

    @property
    def costs(self) -> HostCosts:
        """The host's overhead: medians, except for a worker's time between batches, which is the lower quartile."""
        rows = self._rows
        awaited = rows[rows["finished_ns"] > np.maximum(rows["asked_ns"], rows["free_ns"])]  # the trainer was waiting
        hand_over = (awaited["ready_ns"] - awaited["finished_ns"]) / 1e9
        # Seconds between two batches of a worker, if the queue had room when the first was finished
        idle_from = self.end[self._previous]
        gaps = (self.begin[self._next] - idle_from)[self._room[self._next] <= idle_from]
        gaps = gaps[gaps >= 0]
        step_end = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
        first_reads = [self._begin_in_epoch[rows["rank"] == rank].min() for rank in rows.values("rank")]
        return HostCosts(
            hand_over_seconds=float(np.median(hand_over)) if len(hand_over) else HostCosts().hand_over_seconds,
            between_seconds=float(np.quantile(gaps, 0.25)) if len(gaps) >= FEWEST else 0.0,
            epoch_start_seconds=float(np.median(first_reads)),
            step_seconds=max(0.0, float(np.median(rows["met_ns"] - step_end)) / 1e9),
        )


def calibrate_from_run(run: MeasuredTraining) -> Calibration:
    """Return the calibration from the steps of a run; raises UserError if too few of its steps read anything."""
    rows, facts = run.training, run.facts
    app_bytes, samples = float(rows["app_bytes"].sum()), int(rows["samples"].sum())
    expected_bytes = planned_bytes(facts.workload, facts.train_plan, rows)
    rows = rows[(rows["app_bytes"] > 0) & (rows["finished_ns"] > rows["started_ns"])]
    if len(rows) < 2 * FEWEST:
        raise UserError(f"{run.folder} has {len(rows)} steps with reads: wanted at least {2 * FEWEST} to predict from")
    batches = Batches(rows, facts.batches_ahead)
    begin, end = batches.begin, batches.end
    decode_seconds = np.minimum(rows["decode_ns"] / 1e9, end - begin)
    decodes = decode_seconds.sum() >= MIN_DECODE_SHARE * (end - begin).sum()
    reader = rows["rank"] * (int(rows["worker"].max()) + 1) + rows["worker"]  # a number for each worker of each rank
    reads = Reads(begin, end - decode_seconds if decodes else end, rows["app_bytes"], reader)
    curve = reads.curve()
    core_seconds = np.minimum(decode_seconds, rows["cpu_ns"] / 1e9) if has_nonzero(rows, "cpu_ns") else decode_seconds
    # The model adds the emulated preprocessing of the job that is predicted.
    core_seconds = np.maximum(core_seconds - rows["preprocess_cpu_ns"] / 1e9, 0.0)
    kept = kept_rows(run.training, 1, 0)  # not the first steps, in which all accelerators wait
    waited_ns = np.clip(kept["finished_ns"] - kept["free_ns"], 0, kept["wait_ns"]).sum()  # for batches not yet complete
    waits = waited_ns >= WAITING_SHARE * max(1, total_ns(kept))
    hosts = facts.journal.hosts
    return Calibration(
        source=f"{len(rows):,} steps of {run.folder} ({facts.ranks} x {facts.workload.reader.read_threads} readers)",
        curve=curve,
        saturated=bool(waits) or batches.full_queue_share < WAITING_SHARE,
        half_width_percent=reads.half_width_percent(curve),
        work=work_quantiles([reads]),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=app_bytes / samples,
        bytes_factor=app_bytes / expected_bytes if expected_bytes else 1.0,
        decode_seconds_per_sample=float(core_seconds.sum()) / samples if decodes else 0.0,
        cores=float(np.mean([min(host.cpu_usable, host.cpu_limit or np.inf) for host in hosts])) if hosts else 1.0,
        costs=batches.costs,
    )


def work_quantiles(measurements: Sequence[Reads]) -> tuple[float, ...]:
    """Return rising quantiles of the work of reads in one or more measurements; (1.0,) if reads are too few or equal.

    A rank whose short and long reads alternate is not delayed. So the distribution is narrowed, keeping its shape,
    until means of independent draws vary as much as the means of a reader's successive reads did (`RUN_LENGTHS`).
    """
    work = np.concatenate([reads.work for reads in measurements])
    spread = float(work.std())
    by_length = [np.concatenate([reads.scaled_means(length) for reads in measurements]) for length in RUN_LENGTHS]
    # The means over most reads of which there are 24, which give the spread to 15 %; if none are that many, `FEWEST`.
    means = next((means for least in (24, FEWEST) for means in by_length if len(means) >= least), None)
    if means is None or spread <= 0:
        return (1.0,)
    narrowing = min(1.0, float(means.std(ddof=1)) / spread)
    count = min(WORK_QUANTILES, len(work))
    quantiles = np.quantile(work, (np.arange(count) + 0.5) / count)
    narrowed = np.maximum(0.02, 1 + narrowing * (quantiles - 1))  # 0.02: each read takes some time
    return tuple((narrowed / narrowed.mean()).tolist())


def calibrate_from_levels(
    job: TrainingJob, levels: Sequence[Level], costs: HostCosts, *, cores: float, busy_cores: float = 0.0
) -> Calibration:
    """Return the calibration from a probe's levels: at least one for each number of readers tried, which include 1."""
    merged = _merge_levels(levels)
    # A storage that gives 1.2 times the throughput of half the readers may give even more to more readers.
    up_to_half = [level for level in merged if 2 * level.readers <= merged[-1].readers]
    saturated = bool(up_to_half) and max(level.mb_per_second for level in merged) < 1.2 * up_to_half[-1].mb_per_second
    rows = merged[0].rows  # of one reader
    samples, decode_seconds = int(rows["samples"].sum()), 0.0
    if _decoding_share(merged[0]) >= MIN_DECODE_SHARE:
        # The curve describes the storage, so decoding does not count as a reader's time.
        merged = _levels_of_reading(merged, saturated=saturated)
        decode_seconds = float(np.minimum(rows["decode_ns"], rows["cpu_ns"]).sum()) / samples / 1e9
    points = tuple(CurvePoint(level.readers, level.mb_per_second) for level in merged)
    curve = smoothed(points, [len(level.rows) for level in merged])
    # Levels whose readers do not slow each other down show how much single reads differ. If one reader alone gets the
    # full throughput there is no such level: then the level of 4 readers is taken.
    parallel = [
        level.rows
        for level, point in zip(merged, curve, strict=True)
        if level.readers > 1 and point.mb_per_second >= 0.9 * point.readers * curve[0].mb_per_second
    ] or [next((level.rows for level in merged if level.readers >= 4), merged[-1].rows)]
    reads = [Reads(own["begin_ns"] / 1e9, own["end_ns"] / 1e9, own["app_bytes"], own["reader"]) for own in parallel]
    all_rows = np.concatenate([level.rows for level in levels])
    readers = (str(level.readers) for level in merged)
    mean_bytes = float(all_rows["app_bytes"].sum()) / int(all_rows["samples"].sum())
    expected_bytes = float(bytes_by_file(job.workload.dataset).mean()) or mean_bytes
    return Calibration(
        source=f"a probe of {job.workload.dataset.data_folder} with {', '.join(readers)} readers",
        curve=curve,
        saturated=saturated,
        half_width_percent=max(merged, key=lambda level: level.seconds).half_width_percent,  # the repeated level
        work=work_quantiles(reads),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=float(rows["app_bytes"].sum()) / samples,
        bytes_factor=row_group_reads(job.workload) * (mean_bytes / expected_bytes),
        decode_seconds_per_sample=decode_seconds,
        cores=cores,
        busy_cores=busy_cores,
        costs=costs,
    )


def _decoding_share(level: Level) -> float:
    """Return the share of their time for which a level's readers decoded."""
    rows = level.rows
    return float(rows["decode_ns"].sum() / (rows["end_ns"] - rows["begin_ns"]).sum())


def _levels_of_reading(levels: Sequence[Level], *, saturated: bool) -> list[Level]:
    """Return the levels with the throughput that the same numbers of readers would get if none of them decoded."""
    readers = np.array([level.readers for level in levels], float)
    measured = np.array([level.mb_per_second for level in levels])
    # Of n readers that decode for a share of their time, n * (1 - share) are reading at any time. The throughput of n
    # readers that never decode is interpolated between these numbers; beyond the last, an unsaturated storage scales.
    reading = np.maximum.accumulate(readers * [1 - _decoding_share(level) for level in levels])
    mb_per_second = np.interp(readers, [0.0, *reading], [0.0, *measured])
    if not saturated:
        is_beyond = readers > reading[-1]
        mb_per_second[is_beyond] = measured[-1] * readers[is_beyond] / reading[-1]
    return [replace(level, mb_per_second=float(rate)) for level, rate in zip(levels, mb_per_second, strict=True)]


def _merge_levels(levels: Sequence[Level]) -> list[Level]:
    """Return one level for each number of readers, in rising order; repeated levels are weighted by their duration."""
    merged = []
    for readers in sorted({level.readers for level in levels}):
        repeated = [level for level in levels if level.readers == readers]
        seconds = np.array([level.seconds for level in repeated])
        rates = np.array([level.mb_per_second for level in repeated])
        widths = np.array([level.half_width_percent for level in repeated])
        mean, total_seconds = float(rates @ seconds / seconds.sum()), float(seconds.sum())
        # The half width of the mean, by those of the levels, but at least by how far any level is from the mean
        within = math.sqrt(float(((widths * seconds) ** 2).sum())) / total_seconds
        between = 100 * np.abs(rates / mean - 1) * np.sqrt(seconds / total_seconds)
        width = min(MAX_HALF_WIDTH_PERCENT, max(within, float(between.max())))
        rows = np.concatenate([level.rows for level in repeated])
        merged.append(Level(readers, total_seconds, rows, mean, width))
    return merged
