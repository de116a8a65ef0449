"""Calibration from reads that were measured: a run's steps, or a probe of the workload's own access pattern."""

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
from dlemu.jobs.training.prediction.calibration import (
    CONFIDENCE,
    MAX_HALF_WIDTH_PERCENT,
    MIN_DECODE_SHARE,
    WAITING_SHARE,
    Calibration,
    Curve,
    CurvePoint,
    rates,
    smoothed,
)
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.metrics.au import kept_rows
from dlemu.metrics.demand import row_group_reads
from dlemu.metrics.limit import MIN_SPEEDUP, Scaling
from dlemu.metrics.rates import Floats, Intervals, during, under_way
from dlemu.metrics.rows import StepTable, is_any
from dlemu.metrics.t_interval import FEWEST, estimate

WORK_QUANTILES = 256  # keeps tails of 1 read in 256; each is a number in predict.json
"""Number of quantiles that a distribution of reads' work is stored as."""
WINDOW_SECONDS, MAX_WINDOWS = 0.5, 240  # 240 of half a second: the two minutes of a probe
MAX_KNEES = 24  # up to 256 readers each is 1.27 times the one before
"""Numbers of readers that are tried as the knee of a curve."""
KNEE_SLACK = 1.1
"""How many times the best fit's squared error a lower knee's may be: the lowest knee that fits is taken."""
SUM_LENGTHS = (32, 16, 8, 4, 2)
"""Successive reads of a reader that are added up, to see which of their differences do not even out."""
ENOUGH_SUMS = 24
"""With so many sums their standard deviation is certain enough (to 15 %) to prefer longer sums."""
MIN_PARALLEL_READS = 1.5
"""Mean number of parallel reads below which a read's own work can't be distinguished from the storage's speed."""
MIN_PARALLEL_READERS = 4
"""Readers of the level that shows how much single reads differ, where one reader alone gets the full throughput."""
SCALING_SHARE = 0.9
"""Readers do not slow each other down if together they get this share of their number times one reader's throughput."""
UNSATURATED_GAIN = 1.2
"""A storage that gives this many times the throughput of half the readers might give even more to more readers."""


class Reads:
    """Reads of batches: arrays with one entry per batch; `begin` and `end` are seconds on a clock of all readers.

    A read's bytes are spread evenly over its duration. Windows of time are of WINDOW_SECONDS, or longer where
    MAX_WINDOWS are not enough.
    """

    def __init__(self, begin: Floats, end: Floats, app_bytes: NDArray[np.int64], reader: NDArray[np.int64]) -> None:
        self._begin, self._end, self._bytes = begin, np.maximum(end, begin + 1e-9), app_bytes.astype(float)
        self._reader = reader
        self._edges, self._active, self._lengths = under_way(self._begin, self._end)
        first, last = float(self._edges[0]), float(self._edges[-1])
        self._windows = np.linspace(first, last, max(2, min(MAX_WINDOWS, int((last - first) / WINDOW_SECONDS))) + 1)
        self._read_in_windows = np.diff(Intervals(self._begin, self._end, self._windows).cumulative(self._bytes))

    def curve(self) -> Curve:
        """Return the throughput by number of readers: a straight line from 0 up to a knee, and constant from there on.

        Each window's bytes are compared with its number of active readers: of all knees, fitted by least squares, the
        lowest that fits about as well as the best.
        """
        most, read = int(self._active.max()), self._read_in_windows
        knees = sorted({min(most, round(knee)) for knee in np.geomspace(1, most, min(most, MAX_KNEES))})
        errors, heights = [], []
        for knee in knees:
            # Seconds at full throughput that the active readers of each window amount to
            load = self._in_windows(np.minimum(self._active / knee, 1.0))
            heights.append(float(read @ load) / max(float(load @ load), 1e-12))
            errors.append(float(((read - heights[-1] * load) ** 2).sum()))
        good = min(errors) * KNEE_SLACK + 1e-6 * float((read**2).sum())  # errors of exact fits are rounding errors
        best = next(place for place, error in enumerate(errors) if error <= good)
        knee, height = knees[best], heights[best] / 1e6
        points = {1: height / knee, knee: height, most: height}
        return tuple(CurvePoint(readers=count, mb_per_second=points[count]) for count in sorted(points))

    def half_width_percent(self, curve: Curve) -> float:
        """Return the half width of the 95 % interval of bytes read in a window, in percent of what the curve says."""
        expected = self._in_windows(self._speeds(curve))
        kept = expected >= 0.5 * np.median(expected)  # the others are at the end of an epoch
        percent = 100 * self._read_in_windows[kept] / expected[kept]
        return min(MAX_HALF_WIDTH_PERCENT, estimate(percent, CONFIDENCE).half_width_percent)

    def work_bytes(self, curve: Curve) -> Floats:
        """Return the bytes that one reader gets, by the curve, during each read: what the read took of the storage."""
        return self._in_reads(self._speeds(curve) / np.maximum(self._active, 1))

    @cached_property
    def work(self) -> Floats:
        """Each read's work, by the mean throughput of all active readers while it lasted; the mean of all is 1."""
        active, lengths, durations = self._active, self._lengths, self._end - self._begin
        changes = np.zeros(len(self._edges))
        np.add.at(changes, np.searchsorted(self._edges, self._begin), self._bytes / durations)
        np.add.at(changes, np.searchsorted(self._edges, self._end), -self._bytes / durations)
        ratio = self._in_reads(np.cumsum(changes)[:-1] / np.maximum(active, 1)) / self._bytes
        ratio /= ratio.mean()
        parallel = float((active * lengths).sum() / max(1e-9, float(lengths[active > 0].sum())))
        # The mean of n readers includes the read itself, which hides 1/n of the variance.
        widening = math.sqrt(parallel / (parallel - 1)) if parallel > MIN_PARALLEL_READS else 1.0
        return np.asarray(1 + widening * (ratio - 1))

    def scaled_means(self, length: int) -> Floats:
        """Return the mean work of `length` successive reads of a reader, scaled to vary as one read if independent."""
        means = [np.empty(0)]
        for number in np.unique(self._reader):
            own = self.work[self._reader == number]
            means.append(own[: len(own) // length * length].reshape(-1, length).mean(axis=1))
        return np.concatenate(means) * math.sqrt(length)

    def _speeds(self, curve: Curve) -> Floats:
        """Return the bytes/s, by the curve, of all that are reading at a time."""
        return np.asarray(rates(curve, int(self._active.max()))[self._active])

    def _in_windows(self, per_second: Floats) -> Floats:
        return during(self._windows[:-1], self._windows[1:], self._edges, per_second * self._lengths)

    def _in_reads(self, per_second: Floats) -> Floats:
        return during(self._begin, self._end, self._edges, per_second * self._lengths)


class Batches:
    """The batches in rows of a run, none of them empty; arrays with one entry per row.

    Moments are in seconds, on a clock of all ranks on which 1 s lies between epochs. The loader may have `ahead`
    batches of a rank complete or in work.
    """

    def __init__(self, rows: StepTable, ahead: int) -> None:
        parts = []
        for own in rows.by_rank_and_epoch:  # in the order of the rows
            step, stamps = own["step"], np.stack([own[name] for name in ("started_ns", "finished_ns", "ready_ns")])
            begin, end, ready = (stamps - own["free_ns"].min()) / 1e9
            place = np.minimum(np.searchsorted(step, step - ahead), len(own) - 1)
            room = np.where(step[place] == step - ahead, ready[place], np.inf)
            parts.append(np.stack([begin, end, np.where(step <= ahead, -np.inf, room)]))
        self._since_start, end, room = np.concatenate(parts, axis=1)
        epochs, number = np.unique(rows["epoch"], return_inverse=True)
        lengths = np.zeros(len(epochs))
        np.maximum.at(lengths, number, end)
        since = (np.cumsum(lengths + 1.0) - lengths - 1.0)[number]
        self._rows, self.begin, self.end = rows, self._since_start + since, end + since
        # When the queue had room for batch k: when the trainer received batch k - `ahead`. -inf for the first `ahead`
        # batches of an epoch, infinity where that batch is not among the rows.
        self._room = room + since
        # The indices of batches, and of the batch that the same worker made before in that epoch
        keys = [rows[name] for name in ("epoch", "rank", "worker")]
        order = np.lexsort((self.begin, *reversed(keys)))
        same = np.all([np.diff(key[order]) == 0 for key in keys], axis=0)
        self._later, self._before = order[1:][same], order[:-1][same]

    @cached_property
    def between_seconds(self) -> float:
        """Lower quartile of a worker's seconds between two batches, where its queue had room; 0 for too few."""
        over = self.end[self._before]
        gaps = (self.begin[self._later] - over)[self._room[self._later] <= over]
        gaps = gaps[gaps >= 0]
        return float(np.quantile(gaps, 0.25)) if len(gaps) >= FEWEST else 0.0

    @property
    def full_queue_share(self) -> float:
        """Share of their time that workers waited for room in their queues, so could have read more."""
        until = np.minimum(self._room, self.begin)[self._later]
        waited = np.clip(until - self.end[self._before], 0, None).sum()
        return float(waited / (waited + (self.end - self.begin).sum()))

    @property
    def costs(self) -> HostCosts:
        """The host's overhead."""
        rows = self._rows
        late = rows[rows["finished_ns"] > np.maximum(rows["asked_ns"], rows["free_ns"])]
        handed = (late["ready_ns"] - late["finished_ns"]) / 1e9  # only of batches that the trainer was waiting for
        over = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
        first = [self._since_start[rows["rank"] == rank].min() for rank in rows.values("rank")]
        return HostCosts(
            hand_over_seconds=float(np.median(handed)) if len(handed) else HostCosts().hand_over_seconds,
            between_seconds=self.between_seconds,
            epoch_start_seconds=float(np.median(first)),
            step_seconds=max(0.0, float(np.median(rows["met_ns"] - over)) / 1e9),
        )


def calibrate_from_run(run: MeasuredTraining) -> Calibration:
    """Return the calibration from the steps of a run; raises UserError where too few of them read anything."""
    rows, facts = run.training, run.facts
    app_bytes, samples = float(rows["app_bytes"].sum()), int(rows["samples"].sum())
    planned = planned_bytes(facts.workload, facts.train_plan, rows)
    rows = rows[(rows["app_bytes"] > 0) & (rows["finished_ns"] > rows["started_ns"])]
    if len(rows) < 2 * FEWEST:
        raise UserError(f"{run.folder} has {len(rows)} steps with reads: wanted at least {2 * FEWEST} to predict from")
    batches = Batches(rows, facts.batches_ahead)
    begin, end = batches.begin, batches.end
    decode = np.minimum(rows["decode_ns"] / 1e9, end - begin)
    decodes = decode.sum() >= MIN_DECODE_SHARE * (end - begin).sum()
    reader = rows["rank"] * (int(rows["worker"].max()) + 1) + rows["worker"]
    reads = Reads(begin, end - decode if decodes else end, rows["app_bytes"], reader)
    curve = reads.curve()
    cpu = np.minimum(decode, rows["cpu_ns"] / 1e9) if is_any(rows, "cpu_ns") else decode
    cpu = np.maximum(cpu - rows["preprocess_cpu_ns"] / 1e9, 0.0)  # the model adds that of the predicted job
    hosts = facts.journal.hosts
    return Calibration(
        source=f"{len(rows):,} steps of {run.folder} ({facts.ranks} x {facts.workload.reader.read_threads} readers)",
        curve=_with_scaling(curve, facts.journal.scaling),
        saturated=_waiting_share(run) >= WAITING_SHARE or batches.full_queue_share < WAITING_SHARE,
        half_width_percent=reads.half_width_percent(curve),
        work=work_quantiles([reads]),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=app_bytes / samples,
        bytes_factor=app_bytes / planned if planned else 1.0,
        decode_seconds_per_sample=float(cpu.sum()) / samples if decodes else 0.0,
        cores=float(np.mean([min(host.cpu_usable, host.cpu_limit or np.inf) for host in hosts])) if hosts else 1.0,
        costs=batches.costs,
    )


def _with_scaling(curve: Curve, scaling: Scaling | None) -> Curve:
    """Add a point for the larger number of readers tried after the run: the run's throughput times the trial's gain."""
    if scaling is None:
        return curve
    same = (scaling.mb_per_second + scaling.again_mb_per_second) / 2
    last = curve[-1]
    if same <= 0 or scaling.more_readers <= last.readers or scaling.more_mb_per_second < MIN_SPEEDUP * same:
        return curve
    more = last.mb_per_second * scaling.more_mb_per_second / same
    return (*curve, CurvePoint(readers=scaling.more_readers, mb_per_second=more))


def _waiting_share(run: MeasuredTraining) -> float:
    """Return the share of their time that accelerators waited for reads; first steps, where all wait, do not count."""
    kept = kept_rows(run.training, 1, 0)
    late = np.clip(kept["finished_ns"] - kept["free_ns"], 0, kept["wait_ns"]).sum()
    return float(late / max(1, (kept["wait_ns"] + kept["compute_ns"] + kept["sync_ns"]).sum()))


def work_quantiles(parts: Sequence[Reads]) -> tuple[float, ...]:
    """Return quantiles of the work of reads in one or more measurements.

    Where short and long reads alternate, no rank is delayed: the distribution is narrowed, keeping its shape, until
    sums of independent draws vary as much as the sums of a reader's successive reads (the longest of SUM_LENGTHS with
    enough).
    """
    ratio = np.concatenate([reads.work for reads in parts])
    spread = float(ratio.std())
    by_length = [np.concatenate([reads.scaled_means(length) for reads in parts]) for length in SUM_LENGTHS]
    enough = next((means for least in (ENOUGH_SUMS, FEWEST) for means in by_length if len(means) >= least), np.empty(0))
    if not len(enough) or spread <= 0:
        return (1.0,)
    narrowing = min(1.0, float(enough.std(ddof=1)) / spread)
    count = min(WORK_QUANTILES, len(ratio))
    quantiles = np.quantile(ratio, (np.arange(count) + 0.5) / count)
    work = np.maximum(0.02, 1 + narrowing * (quantiles - 1))  # 0.02: no read takes no time
    return tuple((work / work.mean()).tolist())


def calibrate_from_levels(
    job: TrainingJob,
    levels: Sequence[Level],
    costs: HostCosts,
    *,
    cores: float,
    folder: str,
    busy_cores: float = 0.0,
) -> Calibration:
    """Return the calibration from a probe's levels, one or more for each number of readers, which begin at one."""
    measured = _merged(levels)
    half = [level for level in measured if 2 * level.readers <= measured[-1].readers]
    highest_mb_per_second = max(level.mb_per_second for level in measured)
    saturated = bool(half) and highest_mb_per_second < UNSATURATED_GAIN * half[-1].mb_per_second
    decodes = _decoding_share(measured[0]) >= MIN_DECODE_SHARE
    if decodes:  # the curve is of the storage, so decoding does not count as a reader's time
        measured = _while_reading(measured, saturated=saturated)
    curve = smoothed(_scaling_pooled(measured), [len(level.rows) for level in measured])
    scaling = [
        level
        for level, point in zip(measured, curve, strict=True)
        if point.mb_per_second >= SCALING_SHARE * point.readers * curve[0].mb_per_second
    ]
    rows = measured[0].rows  # of one reader
    samples = int(rows["samples"].sum())
    parallel = [level for level in scaling if level.readers > 1]
    parallel = parallel or [next((level for level in measured if level.readers >= MIN_PARALLEL_READERS), measured[-1])]
    every = np.concatenate([level.rows for level in levels])
    mean_bytes = float(every["app_bytes"].sum()) / int(every["samples"].sum())
    expected_bytes = float(bytes_by_file(job.workload.dataset).mean()) or mean_bytes
    return Calibration(
        source=f"a probe of {folder} with {', '.join(str(level.readers) for level in measured)} readers",
        curve=curve,
        saturated=saturated,
        half_width_percent=max(measured, key=lambda level: level.seconds).half_width_percent,  # the repeated level
        work=work_quantiles(
            [
                Reads(own["begin_ns"] / 1e9, own["end_ns"] / 1e9, own["app_bytes"], own["reader"])
                for own in (level.rows for level in parallel)
            ]
        ),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=float(rows["app_bytes"].sum()) / samples,
        bytes_factor=row_group_reads(job.workload) * (mean_bytes / expected_bytes),
        decode_seconds_per_sample=float(decodes * np.minimum(rows["decode_ns"], rows["cpu_ns"]).sum()) / samples / 1e9,
        cores=cores,
        busy_cores=busy_cores,
        costs=costs,
    )


def _decoding_share(level: Level) -> float:
    rows = level.rows
    return float(rows["decode_ns"].sum() / (rows["end_ns"] - rows["begin_ns"]).sum())


def _while_reading(measured: Sequence[Level], *, saturated: bool) -> list[Level]:
    """Return what the same numbers of readers would get if they only read.

    While a share of n readers decodes, n * (1 - share) read: throughputs are interpolated between those numbers.
    """
    readers = np.array([level.readers for level in measured], float)
    speeds = np.array([level.mb_per_second for level in measured])
    reading = np.maximum.accumulate(readers * [1 - _decoding_share(level) for level in measured])
    while_reading = np.interp(readers, [0.0, *reading], [0.0, *speeds])
    if not saturated:
        more = readers > reading[-1]
        while_reading[more] = speeds[-1] * readers[more] / reading[-1]
    return [replace(level, mb_per_second=float(speed)) for level, speed in zip(measured, while_reading, strict=True)]


def _merged(levels: Sequence[Level]) -> list[Level]:
    """Return one level for each number of readers, by rising number; levels are weighted by their duration.

    Its half width is at least the difference of a single level from the mean of all.
    """
    measured = []
    for readers in sorted({level.readers for level in levels}):
        same = [level for level in levels if level.readers == readers]
        seconds = np.array([level.seconds for level in same])
        speeds = np.array([level.mb_per_second for level in same])
        widths = np.array([level.half_width_percent for level in same])
        mean = float(speeds @ seconds / seconds.sum())
        within = math.sqrt(float(((widths * seconds) ** 2).sum())) / float(seconds.sum())
        between = 100 * np.abs(speeds / mean - 1) * np.sqrt(seconds / seconds.sum())
        measured.append(
            replace(
                same[0],
                rows=np.concatenate([level.rows for level in same]),
                mb_per_second=mean,
                half_width_percent=min(MAX_HALF_WIDTH_PERCENT, max(within, float(between.max()))),
                seconds=float(seconds.sum()),
            )
        )
    return measured


def _scaling_pooled(measured: Sequence[Level]) -> Curve:
    """Return the curve; levels are pooled until the throughput per reader differs significantly from theirs."""
    speed, width = measured[0].mb_per_second, measured[0].half_width_percent
    reads, count = len(measured[0].rows), 1
    for level in measured[1:]:
        per_reader = level.mb_per_second / level.readers
        if abs(100 * (per_reader / speed - 1)) > math.hypot(width, level.half_width_percent):
            break
        total = reads + len(level.rows)
        speed = (speed * reads + per_reader * len(level.rows)) / total
        width = math.hypot(width * reads, level.half_width_percent * len(level.rows)) / total
        reads, count = total, count + 1
    return tuple(
        CurvePoint(readers=level.readers, mb_per_second=speed * level.readers if place < count else level.mb_per_second)
        for place, level in enumerate(measured)
    )
