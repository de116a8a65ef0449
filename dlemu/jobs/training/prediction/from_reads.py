"""Calibration from measured reads: of a run's steps, or of a probe with the workload's own access pattern.

`Reads` estimates the storage's throughput (`curve`) and how much single reads differ (`relative_costs`); `Batches`
estimates the overhead of a run's host. Each of the two `calibrate_from_` functions makes a `Calibration` from these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.pattern import MAX_HALF_WIDTH_PERCENT, Level, merge_levels
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.batches import bytes_by_file, planned_bytes
from dlemu.jobs.training.prediction.calibration import Calibration, Curve, CurvePoint, smoothed, throughputs
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.metrics.au import kept_rows, total_ns
from dlemu.metrics.demand import row_group_reads
from dlemu.metrics.rates import Floats, Intervals, during, under_way
from dlemu.metrics.rows import StepTable, has_nonzero
from dlemu.metrics.t_interval import FEWEST, estimate

# The storage was at its limit if accelerators waited for data for at least this share of their time, or if workers
# waited for room in the prefetch queue for less than this share of theirs.
WAITING_SHARE = 0.02
MIN_DECODE_SHARE = 0.05  # if workers decode for less than this share of their time, decoding is counted as reading
COST_QUANTILES = 256  # number of quantiles that describe the relative costs: enough to keep tails of 1 read in 256
WINDOW_SECONDS, MAX_WINDOWS = 0.5, 240  # 240 windows of half a second are the two minutes of a probe
RUN_LENGTHS = (32, 16, 8, 4, 2)  # numbers of successive reads whose costs are averaged, to see what averages out


class Reads:
    """Reads of batches, from which the storage's curve and the relative costs of the reads are estimated.

    Arrays have one entry per read; `begin` and `end` are seconds on one clock. Bytes are spread evenly over a read.
    """

    def __init__(self, begin: Floats, end: Floats, app_bytes: NDArray[np.int64], reader: NDArray[np.int64]) -> None:
        self._begin, self._end = begin, np.maximum(end, begin + 1e-9)
        self._bytes, self._reader = app_bytes.astype(float), reader
        # Edges are the times at which reads begin or end. Between two edges the number of active reads is constant.
        self._edges, self._active, self._seconds = under_way(self._begin, self._end)
        first, last = float(self._edges[0]), float(self._edges[-1])
        window_count = max(2, min(MAX_WINDOWS, int((last - first) / WINDOW_SECONDS)))
        self._windows = np.linspace(first, last, window_count + 1)
        self._window_bytes = np.diff(Intervals(self._begin, self._end, self._windows).cumulative(self._bytes))

    def curve(self) -> Curve:
        """Return the throughput by number of readers: a straight line from 0 up to a knee, and constant from there on.

        If 1 reader gets 100 MB/s, 2 get 200 and 4 get 200, the knee is at 2. For each knee, the constant part is fitted
        to the windows' bytes by least squares. Of the knees that fit about as well as the best, the lowest is taken.
        """
        max_readers, window_bytes = int(self._active.max()), self._window_bytes
        # At most 24 knees: with up to 256 readers, each is 1.27 times the one before, but for rounding.
        knees = sorted({min(max_readers, round(knee)) for knee in np.geomspace(1, max_readers, min(max_readers, 24))})
        fits = []  # squared error, knee and height (bytes/s) of each
        for knee in knees:
            # Seconds of full throughput in each window: half as many readers as at the knee get half of it.
            full_seconds = self._in_windows(np.minimum(self._active / knee, 1.0))
            height = float(window_bytes @ full_seconds) / max(float(full_seconds @ full_seconds), 1e-12)
            fits.append((float(((window_bytes - height * full_seconds) ** 2).sum()), knee, height))
        max_error = min(fits)[0] * 1.1 + 1e-6 * float((window_bytes**2).sum())  # an exact fit has rounding errors
        knee, height = next((knee, height) for error, knee, height in fits if error <= max_error)
        mb_per_second = height / 1e6
        points = {1: mb_per_second / knee, knee: mb_per_second, max_readers: mb_per_second}
        return tuple(CurvePoint(*point) for point in sorted(points.items()))

    def half_width_percent(self, curve: Curve) -> float:
        """Return the half width of the 95 % interval of a window's bytes, in percent of the bytes by the curve."""
        expected = self._in_windows(self._throughput(curve))
        is_busy = expected >= 0.5 * np.median(expected)  # the other windows are at the end of an epoch
        percent = 100 * self._window_bytes[is_busy] / expected[is_busy]
        return min(MAX_HALF_WIDTH_PERCENT, estimate(percent, 0.95).half_width_percent)

    def weighted_bytes(self, curve: Curve) -> Floats:
        """Return the bytes of each read x its cost: those that one reader gets, by the curve, during the read."""
        return self._in_reads(self._throughput(curve) / np.maximum(self._active, 1))

    @cached_property
    def relative_costs(self) -> Floats:
        """What each read needs of the storage per byte, relative to the mean of all reads, which is 1.

            cost of a read = bytes that the average active reader got during the read / bytes of the read

        These ratios are divided by their mean. A read that took twice as long as others of its size costs about 2.
        """
        bytes_per_second = self._bytes / (self._end - self._begin)
        rate_changes = np.zeros(len(self._edges))  # of all active reads together, at each edge
        np.add.at(rate_changes, np.searchsorted(self._edges, self._begin), bytes_per_second)
        np.add.at(rate_changes, np.searchsorted(self._edges, self._end), -bytes_per_second)
        mean_rate = np.cumsum(rate_changes)[:-1] / np.maximum(self._active, 1)
        costs = self._in_reads(mean_rate) / self._bytes
        costs /= costs.mean()
        busy_seconds = float(self._seconds[self._active > 0].sum())
        readers = float((self._active * self._seconds).sum() / max(1e-9, busy_seconds))  # mean number of active ones
        # The average of n readers includes the read itself, which hides 1/n of the variance: so the distances from the
        # mean are multiplied by sqrt(n / (n - 1)). With hardly any parallel reads (n near 1), the cost of a read can't
        # be told from the storage's speed, and stays as it is.
        widening = math.sqrt(readers / (readers - 1)) if readers > 1.5 else 1.0
        return np.asarray(1 + widening * (costs - 1))

    def scaled_means(self, length: int) -> Floats:
        """Return the mean cost of each `length` successive reads of a reader, times the square root of `length`.

        If the costs of successive reads are independent, these values vary as much as the costs of single reads.
        """
        means = [np.empty(0)]
        for reader in np.unique(self._reader):
            costs = self.relative_costs[self._reader == reader]
            means.append(costs[: len(costs) // length * length].reshape(-1, length).mean(axis=1))
        return np.concatenate(means) * math.sqrt(length)

    def _throughput(self, curve: Curve) -> Floats:
        """Return the bytes/s of all active reads between each two edges, by the curve."""
        return np.asarray(throughputs(curve, int(self._active.max()))[self._active])

    def _in_windows(self, rate: Floats) -> Floats:
        """Return the total of a rate, which has a value between each two edges, in each window."""
        return during(self._windows[:-1], self._windows[1:], self._edges, rate * self._seconds)

    def _in_reads(self, rate: Floats) -> Floats:
        """Return the total of a rate, which has a value between each two edges, during each read."""
        return during(self._begin, self._end, self._edges, rate * self._seconds)


def cost_quantiles(measurements: Sequence[Reads]) -> tuple[float, ...]:
    """Return rising quantiles of the relative costs of reads; (1.0,) if reads are too few, or all cost the same.

    A rank whose short and long reads alternate is not delayed. So the distribution is narrowed, keeping its shape,
    until means of independent draws vary as much as the means of a reader's successive reads did (`RUN_LENGTHS`).
    """
    costs = np.concatenate([reads.relative_costs for reads in measurements])
    deviation = float(costs.std())
    by_length = [np.concatenate([reads.scaled_means(length) for reads in measurements]) for length in RUN_LENGTHS]
    # Use the longest runs of which there are at least 24 (their standard deviation is known to 15 %), else `FEWEST`.
    usable = [means for min_count in (24, FEWEST) for means in by_length if len(means) >= min_count]
    if not usable or deviation <= 0:
        return (1.0,)
    narrowing = min(1.0, float(usable[0].std(ddof=1)) / deviation)
    count = min(COST_QUANTILES, len(costs))
    quantiles = np.quantile(costs, (np.arange(count) + 0.5) / count)
    narrowed = np.maximum(0.02, 1 + narrowing * (quantiles - 1))  # 0.02: each read takes some time
    return tuple((narrowed / narrowed.mean()).tolist())


class Batches:
    """When a run's batches were made, and when the prefetch queue had room for them.

    All `rows` have reads. `batches_ahead`: maximum number of batches in a rank's loader, complete or being made.
    Arrays have one entry per row. Times are seconds on one clock for all ranks, which puts 1 s between epochs.
    """

    def __init__(self, rows: StepTable, batches_ahead: int) -> None:
        columns = []
        for part in rows.by_rank_and_epoch:  # in the order of the rows
            stamps_ns = np.stack([part[name] for name in ("started_ns", "finished_ns", "ready_ns")])
            begin, end, ready = (stamps_ns - part["free_ns"].min()) / 1e9
            # The queue has room for batch k once the trainer has received batch k - `batches_ahead`: from the start for
            # the first batches, and never if that batch has no row.
            step = part["step"]
            awaited_step = step - batches_ahead
            index = np.minimum(np.searchsorted(step, awaited_step), len(part) - 1)
            room = np.where(step[index] == awaited_step, ready[index], np.inf)
            columns.append(np.stack([begin, end, np.where(awaited_step <= 0, -np.inf, room)]))
        self._begin_in_epoch, end_in_epoch, room_in_epoch = np.concatenate(columns, axis=1)
        epochs, epoch_index = np.unique(rows["epoch"], return_inverse=True)
        epoch_seconds = np.zeros(len(epochs))
        np.maximum.at(epoch_seconds, epoch_index, end_in_epoch)
        epoch_starts = np.cumsum(epoch_seconds + 1.0) - epoch_seconds - 1.0
        epoch_start = epoch_starts[epoch_index]  # of the epoch of each row
        self._rows = rows
        self.begin, self.end = self._begin_in_epoch + epoch_start, end_in_epoch + epoch_start
        self._room = room_in_epoch + epoch_start  # when the queue had room for the batch
        # Pairs of batches that a worker made one after the other in an epoch: the index of each, and of the one before
        keys = [rows[name] for name in ("epoch", "rank", "worker")]
        order = np.lexsort((self.begin, *reversed(keys)))
        is_same_worker = np.all([np.diff(key[order]) == 0 for key in keys], axis=0)
        self._next, self._previous = order[1:][is_same_worker], order[:-1][is_same_worker]

    @property
    def full_queue_share(self) -> float:
        """Share of their time for which workers waited for room in the queue, and could have read more."""
        waited_until = np.minimum(self._room, self.begin)[self._next]
        waited_seconds = np.clip(waited_until - self.end[self._previous], 0, None).sum()
        return float(waited_seconds / (waited_seconds + (self.end - self.begin).sum()))

    @property
    def costs(self) -> HostCosts:
        """The host's overhead: medians, except for a worker's time between batches, which is the lower quartile."""
        rows = self._rows
        # Batches for which the trainer was waiting
        awaited = rows[rows["finished_ns"] > np.maximum(rows["asked_ns"], rows["free_ns"])]
        hand_overs = (awaited["ready_ns"] - awaited["finished_ns"]) / 1e9
        # Seconds between two batches of a worker, if the queue had room when the first was finished
        idle_from = self.end[self._previous]
        gaps = (self.begin[self._next] - idle_from)[self._room[self._next] <= idle_from]
        gaps = gaps[gaps >= 0]
        step_end_ns = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
        first_reads = [self._begin_in_epoch[rows["rank"] == rank].min() for rank in rows.values("rank")]
        return HostCosts(
            hand_over_seconds=float(np.median(hand_overs)) if len(hand_overs) else HostCosts().hand_over_seconds,
            between_seconds=float(np.quantile(gaps, 0.25)) if len(gaps) >= FEWEST else 0.0,
            epoch_start_seconds=float(np.median(first_reads)),
            step_seconds=max(0.0, float(np.median(rows["met_ns"] - step_end_ns)) / 1e9),
        )


def calibrate_from_run(run: MeasuredTraining) -> Calibration:
    """Return the calibration from the steps of a run; raises UserError if too few of its steps read anything."""
    facts, all_rows = run.facts, run.training
    app_bytes, samples = float(all_rows["app_bytes"].sum()), int(all_rows["samples"].sum())
    expected_bytes = planned_bytes(facts.workload, facts.train_plan, all_rows)
    rows = all_rows[(all_rows["app_bytes"] > 0) & (all_rows["finished_ns"] > all_rows["started_ns"])]
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
    kept = kept_rows(all_rows, 1, 0)  # not the first steps, in which all accelerators wait
    waited_ns = np.clip(kept["finished_ns"] - kept["free_ns"], 0, kept["wait_ns"]).sum()  # for batches not yet complete
    accelerators_waited = waited_ns >= WAITING_SHARE * max(1, total_ns(kept))
    hosts = facts.journal.hosts
    return Calibration(
        source=f"{len(rows):,} steps of {run.folder} ({facts.ranks} x {facts.workload.reader.read_threads} readers)",
        curve=curve,
        saturated=bool(accelerators_waited) or batches.full_queue_share < WAITING_SHARE,
        half_width_percent=reads.half_width_percent(curve),
        work=cost_quantiles([reads]),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=app_bytes / samples,
        bytes_factor=app_bytes / expected_bytes if expected_bytes else 1.0,
        decode_seconds_per_sample=float(core_seconds.sum()) / samples if decodes else 0.0,
        cores=float(np.mean([min(host.cpu_usable, host.cpu_limit or np.inf) for host in hosts])) if hosts else 1.0,
        costs=batches.costs,
    )


def calibrate_from_levels(
    job: TrainingJob, levels: Sequence[Level], costs: HostCosts, *, cores: float, busy_cores: float = 0.0
) -> Calibration:
    """Return the calibration from a probe's levels: at least one for each number of readers tried, which include 1."""
    merged = merge_levels(levels)
    # A storage that gives 1.2 times the throughput of half the readers may give even more to more readers.
    up_to_half = [level for level in merged if 2 * level.readers <= merged[-1].readers]
    saturated = bool(up_to_half) and max(level.mb_per_second for level in merged) < 1.2 * up_to_half[-1].mb_per_second
    rows = merged[0].rows  # of one reader
    samples, decode_seconds = int(rows["samples"].sum()), 0.0
    if merged[0].decoding_share >= MIN_DECODE_SHARE:
        # The curve describes the storage, so decoding does not count as a reader's time.
        merged = _without_decoding(merged, saturated=saturated)
        decode_seconds = float(np.minimum(rows["decode_ns"], rows["cpu_ns"]).sum()) / samples / 1e9
    points = tuple(CurvePoint(level.readers, level.mb_per_second) for level in merged)
    curve = smoothed(points, [len(level.rows) for level in merged])
    # The costs of single reads are taken from levels whose readers do not slow each other down. There is none if one
    # reader alone gets the full throughput: then they are taken from the level of 4 readers, or else of the most.
    unslowed = [
        level
        for level, point in zip(merged, curve, strict=True)
        if level.readers > 1 and point.mb_per_second >= 0.9 * point.readers * curve[0].mb_per_second
    ]
    if not unslowed:
        unslowed = [next((level for level in merged if level.readers >= 4), merged[-1])]
    reads = [
        Reads(level.rows["begin_ns"] / 1e9, level.rows["end_ns"] / 1e9, level.rows["app_bytes"], level.rows["reader"])
        for level in unslowed
    ]
    all_rows = np.concatenate([level.rows for level in levels])
    readers = (str(level.readers) for level in merged)
    mean_bytes = float(all_rows["app_bytes"].sum()) / int(all_rows["samples"].sum())
    expected_bytes = float(bytes_by_file(job.workload.dataset).mean()) or mean_bytes
    return Calibration(
        source=f"a probe of {job.workload.dataset.data_folder} with {', '.join(readers)} readers",
        curve=curve,
        saturated=saturated,
        half_width_percent=max(merged, key=lambda level: level.seconds).half_width_percent,  # the repeated level
        work=cost_quantiles(reads),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=float(rows["app_bytes"].sum()) / samples,
        bytes_factor=row_group_reads(job.workload) * (mean_bytes / expected_bytes),
        decode_seconds_per_sample=decode_seconds,
        cores=cores,
        busy_cores=busy_cores,
        costs=costs,
    )


def _without_decoding(levels: Sequence[Level], *, saturated: bool) -> list[Level]:
    """Return the levels with the throughput that the same numbers of readers would get if none of them decoded.

    Of n readers that decode for a share of their time, n x (1 - share) are reading at any time. The throughput of n
    readers that never decode is interpolated between these numbers; beyond the last, an unsaturated storage scales.
    """
    readers = np.array([level.readers for level in levels], float)
    measured = np.array([level.mb_per_second for level in levels])
    reading = np.maximum.accumulate(readers * [1 - level.decoding_share for level in levels])
    mb_per_second = np.interp(readers, [0.0, *reading], [0.0, *measured])
    if not saturated:
        is_beyond = readers > reading[-1]
        mb_per_second[is_beyond] = measured[-1] * readers[is_beyond] / reading[-1]
    return [replace(level, mb_per_second=float(rate)) for level, rate in zip(levels, mb_per_second, strict=True)]
