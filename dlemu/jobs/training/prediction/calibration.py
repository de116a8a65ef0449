"""What is known of a storage and its host before anything is predicted; and how the steps of a run show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.prediction.curve import Curve, CurvePoint, flat, most_mb_per_second, rates
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.metrics.au import kept_rows
from dlemu.metrics.limit import MIN_SPEEDUP, Scaling
from dlemu.metrics.rows import Rows
from dlemu.metrics.t_interval import FEWEST, estimate

Floats = NDArray[np.float64]

DRAWS = 256  # keeps tails of 1 read in 256; each is a number in predict.json
"""Quantiles that a distribution of work is kept as."""
WINDOW_SECONDS, MOST_WINDOWS = 0.5, 240  # 240 of half a second: the two minutes of a probe
MOST_KNEES = 24  # to 256 readers each is 1.27 times the one before
KNEE_SLACK = 1.1
"""How much worse than the best fit that of a lower knee may be: fewer readers need be known to find it."""
TOGETHER = (32, 16, 8, 4, 2)
"""Reads of a reader whose sum shows what does not even out."""
MANY = 24
"""Sums whose standard deviation is known well enough (to 15 %) to prefer them to sums of fewer reads."""
WAITED = 0.02
"""Share of the time that accelerators waited for data from which on the storage gave all it could; and below which
the share must be that readers waited for room in their queues."""
LEAST_DECODE_SHARE = 0.05
"""Share of a worker's time below which what it does after reading is counted as reading."""
LEAST_BESIDE = 1.5
"""Readers at a time from which on what one took can be distinguished from what all got."""
LEAST_LEFT = 0.001
"""Share of a storage that others leave at the lower end of an interval: with none the job would never end."""
CONFIDENCE, MOST_HALF_WIDTH = 0.95, 50.0  # with 100 % the slower storage would stand still


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One storage with one host and one pattern of access."""

    source: str
    """What it was made of, in words."""
    curve: Curve
    saturated: bool
    """The load was all the storage could deliver; else it may give more than the curve says."""
    half_width_percent: float
    """Of the curve's 95 % interval, as far as the measurement itself shows."""
    work: tuple[float, ...] = (1.0,)
    """Quantiles of what batches of one size took of the storage, as multiples of their mean, smallest first."""
    samples_per_read: int = 1
    """Samples of each batch that `work` was seen in."""
    sample_bytes: float = 0.0
    """Mean bytes read of a sample; 0 where that is not known."""
    bytes_factor: float = 1.0
    """Bytes really read for each byte that the law of the dataset's files gives."""
    decode_seconds_per_sample: float = 0.0
    """Of a core, after reading; 0 where it is counted as reading."""
    cores: float = 1.0
    """Of one host."""
    busy_cores: float = 0.0
    """That others than the readers kept busy meanwhile: other programs, or the storage's own; 0 where not known."""
    costs: HostCosts = field(default_factory=HostCosts)
    others_mb_per_second: float = 0.0
    """That other jobs take of the storage meanwhile, by the question; `curve` is the storage's with nobody else."""

    def left_mb_per_second(self, speed: float = 1.0) -> float:
        """Return the most that is left for the job, of a storage that is `speed` times as fast."""
        whole = speed * most_mb_per_second(self.curve)
        return max(whole - self.others_mb_per_second, LEAST_LEFT * whole)


@dataclass(frozen=True, eq=False)
class Reads:
    """Batches that were read; arrays have one entry a batch. Seconds of one clock."""

    begin: Floats
    end: Floats
    size_bytes: Floats


def given_speed(mb_per_second: float, *, cores: float) -> Calibration:
    """Return what is known of a storage of which somebody says its speed."""
    return Calibration(
        source=f"{mb_per_second:g} MB/s as given, whatever the number of readers",
        curve=flat(mb_per_second),
        saturated=True,
        half_width_percent=0.0,
        cores=cores,
    )


def calibrate_from_run(run: MeasuredTraining) -> Calibration:
    """Return what the steps of a run say; raises UserError where they say nothing of the storage."""
    from dlemu.jobs.training.prediction.batches import law_bytes

    rows, facts = run.training, run.facts
    rows = rows[(rows["app_bytes"] > 0) & (rows["finished_ns"] > rows["started_ns"])]
    if len(rows) < 2 * FEWEST:
        raise UserError(f"{run.folder} has {len(rows)} steps with reads: wanted at least {2 * FEWEST} to predict from")
    begin, end, origin = stamps(rows)
    room = room_since(rows, begin, facts.batches_ahead)
    gap = between_batches(rows, begin, end, room)
    took = end - begin
    decode = np.minimum(rows["decode_ns"] / 1e9, took)
    cpu_known = bool(rows["cpu_ns"].any())
    decodes = decode.sum() >= LEAST_DECODE_SHARE * took.sum()
    read_end = end - decode if decodes else end
    reads = Reads(begin, read_end, rows["app_bytes"].astype(float))
    curve, workers = estimate_curve(reads), int(rows["worker"].max()) + 1
    samples = max(1, round(float(rows["samples"].mean())))
    cpu = np.minimum(decode, rows["cpu_ns"] / 1e9) if cpu_known else decode
    cpu = np.maximum(cpu - rows["preprocess_cpu_ns"] / 1e9, 0.0)  # that of the predicted job is added to its own
    hosts = facts.journal.hosts
    law = law_bytes(facts.workload, facts.train_plan, rows)
    return Calibration(
        source=f"{len(rows):,} steps of {run.folder} ({facts.ranks} x {facts.workload.reader.read_threads} readers)",
        curve=_with_scaling(curve, facts.journal.scaling),
        saturated=_waited(run) >= WAITED or _idle(rows, begin, end, room) < WAITED,
        half_width_percent=half_width_percent([(reads, curve)]),
        work=work_quantiles([(reads, rows["rank"] * workers + rows["worker"])]),
        samples_per_read=samples,
        sample_bytes=float(rows["app_bytes"].sum() / rows["samples"].sum()),
        bytes_factor=float(rows["app_bytes"].sum()) / law if law else 1.0,
        decode_seconds_per_sample=float(cpu.sum() / rows["samples"].sum()) if decodes else 0.0,
        cores=float(np.mean([min(host.cpu_usable, host.cpu_limit or np.inf) for host in hosts])) if hosts else 1.0,
        costs=host_costs(rows, begin, origin, gap),
    )


def _with_scaling(curve: Curve, scaling: Scaling | None) -> Curve:
    """Add what more readers got right after the run, in proportion to what as many as the run's got then."""
    if scaling is None or scaling.again_mb_per_second is None:
        return curve
    same = (scaling.mb_per_second + scaling.again_mb_per_second) / 2
    last = curve[-1]
    if same <= 0 or scaling.more_readers <= last.readers or scaling.more_mb_per_second < MIN_SPEEDUP * same:
        return curve
    more = last.mb_per_second * scaling.more_mb_per_second / same
    return (*curve, CurvePoint(readers=scaling.more_readers, mb_per_second=more))


def stamps(rows: Rows) -> tuple[Floats, Floats, Floats]:
    """Return begin and end of each batch and the start of its epoch, in seconds, epochs one after the other.

    Each rank's stamps count from its own start of the epoch, which is one moment on all of them.
    """
    keys, place = np.unique(np.stack([rows["epoch"], rows["rank"]]), axis=1, return_inverse=True)
    place = place.ravel()
    start = np.full(keys.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(start, place, rows["free_ns"])
    begin, end = (rows["started_ns"] - start[place]) / 1e9, (rows["finished_ns"] - start[place]) / 1e9
    epochs, number = np.unique(rows["epoch"], return_inverse=True)
    lengths = np.zeros(len(epochs))
    np.maximum.at(lengths, number, end)
    origin = (np.cumsum(lengths + 1.0) - lengths - 1.0)[number]
    return begin + origin, end + origin, origin


def room_since(rows: Rows, begin: Floats, ahead: int) -> Floats:
    """Return when each batch could be begun because its rank's queue had room for it; -inf for the first of an epoch.

    Batch k waits until the trainer has batch k - `ahead`; infinity where that one is not among the rows.
    """
    step, most = rows["step"].astype(np.int64), int(rows["step"].max()) + 1
    key = (rows["rank"].astype(np.int64) * (int(rows["epoch"].max()) + 1) + rows["epoch"]) * most + step
    order = np.argsort(key)
    place = np.minimum(np.searchsorted(key[order], key - ahead), len(key) - 1)
    there = key[order][place] == key - ahead
    ready = begin + (rows["ready_ns"] - rows["started_ns"]) / 1e9
    room: Floats = np.where(there, ready[order][place], np.inf)
    room[step <= ahead] = -np.inf
    return room


def _successive(rows: Rows, begin: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return each batch that its worker made after another of the same epoch, and that other."""
    order = np.lexsort((begin, rows["worker"], rows["rank"], rows["epoch"]))
    same = np.ones(len(order) - 1, bool)
    for name in ("epoch", "rank", "worker"):
        same &= np.diff(rows[name][order].astype(np.int64)) == 0
    return order[1:][same], order[:-1][same]


def between_batches(rows: Rows, begin: Floats, end: Floats, room: Floats) -> float:
    """Return what a worker takes from one batch to the next when the next is waiting for it: the quick quarter.

    A worker whose queue is full waits for room in it; that is no work, however long it takes.
    """
    batch, before = _successive(rows, begin)
    gaps = (begin[batch] - end[before])[room[batch] <= end[before]]
    gaps = gaps[gaps >= 0]
    return float(np.quantile(gaps, 0.25)) if len(gaps) >= FEWEST else 0.0


def _idle(rows: Rows, begin: Floats, end: Floats, room: Floats) -> float:
    """Return the share of their time that workers waited for room in their queues: they could have read more."""
    batch, before = _successive(rows, begin)
    waited = np.clip(np.minimum(room[batch], begin[batch]) - end[before], 0, None).sum()
    return float(waited / (waited + (end - begin).sum()))


def _waited(run: MeasuredTraining) -> float:
    """Return the share of their time that accelerators waited for batches not yet read, first steps left out.

    Every run waits for its first batches, also on a storage that gives more than is requested.
    """
    kept = kept_rows(run.training, 1, 0)
    late = np.clip(kept["finished_ns"] - kept["free_ns"], 0, kept["wait_ns"]).sum()
    return float(late / max(1, (kept["wait_ns"] + kept["compute_ns"] + kept["sync_ns"]).sum()))


def host_costs(rows: Rows, begin: Floats, origin: Floats, gap: float) -> HostCosts:
    first = begin - origin  # of each batch, since its epoch's start
    by_rank = [first[rows["rank"] == rank] for rank in np.unique(rows["rank"])]
    late = rows[rows["finished_ns"] > np.maximum(rows["asked_ns"], rows["free_ns"])]
    handed = (late["ready_ns"] - late["finished_ns"]) / 1e9
    over = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
    defaults = HostCosts()
    return HostCosts(
        hand_over_seconds=float(np.median(handed)) if len(handed) else defaults.hand_over_seconds,
        between_seconds=gap,
        epoch_start_seconds=float(np.median([part.min() for part in by_rank])),
        step_seconds=max(0.0, float(np.median(rows["met_ns"] - over)) / 1e9),
    )


def estimate_curve(reads: Reads) -> Curve:
    """Return what so many readers got together: a straight line up to a knee, and the same from there on.

    Nobody saw how fast a read was while others came and went, only when it began and ended. So the bytes of windows of
    time, each read's spread evenly over its own, are compared with the time that so many readers were at work in each:
    for every possible knee the height that fits best (least squares), and of these the lowest knee whose fit is not
    much worse than the best. A run in which the number of readers hardly changed says nothing of fewer: the knee is
    then at one reader. A curve of more shapes would fit the queues of a drive, and not its speed.
    """
    edges, active, lengths = _readers_over_time(reads)
    windows = _windows(edges)
    given = np.diff(_read_until(reads, windows))
    most = int(active.max())
    knees = sorted({min(most, round(knee)) for knee in np.geomspace(1, most, min(most, MOST_KNEES))})
    errors, heights = [], []
    for knee in knees:
        could = np.diff(
            np.interp(windows, edges, np.concatenate([[0.0], np.cumsum(lengths * np.minimum(active / knee, 1.0))]))
        )
        height = float(given @ could / max(could @ could, 1e-12))
        heights.append(height)
        errors.append(float(((given - height * could) ** 2).sum()))
    good = min(errors) * KNEE_SLACK + 1e-6 * float((given**2).sum())  # exact fits differ by rounding alone
    best = next(place for place, error in enumerate(errors) if error <= good)
    knee, height = knees[best], heights[best] / 1e6
    points = {1: height / knee, knee: height, most: height}
    return tuple(CurvePoint(readers=count, mb_per_second=points[count]) for count in sorted(points))


def _readers_over_time(reads: Reads) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return the moments at which a read began or ended, and between them how many went on, and for how long."""
    stamps = np.concatenate([reads.begin, reads.end])
    order = np.argsort(stamps, kind="stable")
    changes = np.concatenate([np.ones(len(reads.begin), int), -np.ones(len(reads.end), int)])[order]
    edges = stamps[order]
    return edges, np.cumsum(changes)[:-1], np.diff(edges)


def _windows(edges: Floats) -> Floats:
    """Return the edges of windows that are long beside a read and enough to be significant."""
    span = float(edges[-1] - edges[0])
    return np.linspace(edges[0], edges[-1], max(2, min(MOST_WINDOWS, int(span / WINDOW_SECONDS))) + 1)


def _read_until(reads: Reads, moments: Floats) -> Floats:
    """Return the bytes that were read up to each moment."""
    took = np.maximum(reads.end - reads.begin, 1e-9)
    return np.array([(reads.size_bytes * np.clip((at - reads.begin) / took, 0, 1)).sum() for at in moments])


def work_quantiles(parts: Sequence[tuple[Reads, NDArray[np.int64]]]) -> tuple[float, ...]:
    """Return quantiles of what reads took of the storage, as multiples of what their bytes take on average.

    Each part is a measurement and the reader of each of its reads. What all readers get at a time goes up and down with
    the storage's own bursts, which are no read's: what a read took is compared with what all those beside it got
    meanwhile. That leaves out a read's own part in it, which of n readers is 1/n of its variance. And a storage that
    serves readers out of turn makes one read short and the next one long. That evens out and no rank loses by it; what
    does not even out is seen in sums of `TOGETHER` reads of a reader, of as many as there are enough sums of: the
    distribution keeps its shape and is drawn together until they differ as they did.
    """
    ratios = [_work(reads) for reads, _ in parts]
    readers = [reader for _, reader in parts]
    ratio = np.concatenate(ratios)
    single = float(ratio.std())
    spreads = {together: _sums(ratios, readers, together) for together in TOGETHER}
    enough = next((sums for fewest in (MANY, FEWEST) for sums in spreads.values() if len(sums) >= fewest), np.empty(0))
    if not len(enough) or single <= 0:
        return (1.0,)
    shrunk = min(1.0, float(enough.std(ddof=1)) / single)
    places = (np.arange(min(DRAWS, len(ratio))) + 0.5) / min(DRAWS, len(ratio))
    drawn = np.maximum(0.02, 1 + shrunk * (np.quantile(ratio, places) - 1))  # no read takes no time
    return tuple((drawn / drawn.mean()).tolist())


def _work(reads: Reads) -> Floats:
    """Return what each read took beside what all those around it got; the mean is 1."""
    edges, active, lengths = _readers_over_time(reads)
    took = np.maximum(reads.end - reads.begin, 1e-9)
    changes = np.zeros(len(edges))
    np.add.at(changes, np.searchsorted(edges, reads.begin), reads.size_bytes / took)
    np.add.at(changes, np.searchsorted(edges, reads.end), -reads.size_bytes / took)
    speed = np.cumsum(changes)[:-1] / np.maximum(active, 1)
    given = np.concatenate([[0.0], np.cumsum(speed * lengths)])
    ratio: Floats = (np.interp(reads.end, edges, given) - np.interp(reads.begin, edges, given)) / reads.size_bytes
    ratio /= ratio.mean()
    beside = float((active * lengths).sum() / max(1e-9, float(lengths[active > 0].sum())))
    wider = math.sqrt(beside / (beside - 1)) if beside > LEAST_BESIDE else 1.0
    return np.asarray(1 + wider * (ratio - 1))


def work_of_reads(reads: Reads, curve: Curve) -> Floats:
    """Return what each read took of a storage of that curve: the bytes that a reader was given while it lasted."""
    edges, active, lengths = _readers_over_time(reads)
    share = rates(curve, int(active.max()))[active] / np.maximum(active, 1)
    given = np.concatenate([[0.0], np.cumsum(share * lengths)])
    return np.asarray(np.interp(reads.end, edges, given) - np.interp(reads.begin, edges, given))


def _sums(ratios: Sequence[Floats], readers: Sequence[NDArray[np.int64]], together: int) -> Floats:
    """Return means of so many successive reads of a reader, as far from their mean as single ones would be alone."""
    means = [np.empty(0)]
    for ratio, reader in zip(ratios, readers, strict=True):
        for number in np.unique(reader):
            own = ratio[reader == number]
            means.append(own[: len(own) // together * together].reshape(-1, together).mean(axis=1))
    return np.concatenate(means) * math.sqrt(together)


def half_width_percent(parts: Sequence[tuple[Reads, Curve]]) -> float:
    """Return the half width of the 95 % interval of a curve, in percent of it: what windows of time say.

    Each part is a measurement with what the curve says of it.
    """
    values: list[float] = []
    for reads, curve in parts:
        edges, active, lengths = _readers_over_time(reads)
        windows = _windows(edges)
        speed = rates(curve, int(active.max()))
        expected = np.diff(np.interp(windows, edges, np.concatenate([[0.0], np.cumsum(speed[active] * lengths)])))
        kept = expected >= 0.5 * np.median(expected)  # the others lie at an epoch's end
        values += (100 * np.diff(_read_until(reads, windows))[kept] / expected[kept]).tolist()
    return min(MOST_HALF_WIDTH, estimate(np.array(values), CONFIDENCE).half_width_percent)
