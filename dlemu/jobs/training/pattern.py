"""Measures the storage's throughput with a workload's own access pattern, for 1, 2, 4, ... parallel readers.

A *reader* is a process that makes batches like a loader's worker, with the same `BatchMaker`. A *level* is the
measurement with one number of readers. It reads each sample at most once, or evicts its file before the next read.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.errors import SpaceError
from datagen.storage.storage_base import open_storage
from dlemu.config.duration import NO_TIME, Duration
from dlemu.jobs.training.evict import evict
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.jobs.training.scaling import READ_BYTES
from dlemu.loaders.loader_base import BatchMaker, LoaderSpec
from dlemu.machine.cgroup_limits import host_memory
from dlemu.metrics.rates import Intervals
from dlemu.metrics.t_interval import estimate
from dlemu.plan.samples import Plan, RankPlan
from dlemu.ranks import Comm
from dlemu.ranks.failure import Role
from dlemu.ranks.launch import run_crew
from dlemu.results.drive import READ_AHEAD_BYTES

SETTLE_SECONDS = 0.5  # warm-up that is not counted: idle caches and burst credits make a level's first reads fast
LEVEL_SECONDS = 2.0  # minimum duration of a level: nine, to 256 readers, take 23 s; shorter ones have wider intervals
MIN_READS_PER_READER = 6  # in a level: of fewer, its ends cut too large a share; more take minutes on slow storage
MAX_LEVEL_SECONDS = 12.0  # eight such levels, to 128 readers, fit MAX_SECONDS
MAX_SECONDS = 110.0  # of all levels; two minutes with the starts of processes (docs/prediction.md, section 1)
# How often the most important level is repeated, and the half width of its interval that the repetitions aim for
REPEATS, TARGET_HALF_WIDTH_PERCENT = 2, 1.0
MAX_REPEAT_SECONDS = 30.0  # maximum duration of a repetition: reaching the target may take hours
MAX_HALF_WIDTH_PERCENT = 50.0  # of an interval: 100 % would reach down to a storage without throughput
MAX_READERS = 256  # each is a process; more overload the cores of most hosts before the storage
ENDLESS = 1 << 40  # number of reads of a level that only time ends, because each file is evicted after its one read
MEMORY_SHARE = 0.25  # of the available memory, for the readers' buffers; more may push other programs into swap
_READER = Role("reader", "use fewer readers or a smaller batch")
READ_DTYPE = np.dtype(
    [(name, np.int64) for name in ("begin_ns", "end_ns", "app_bytes", "samples", "decode_ns", "cpu_ns", "reader")]
)
ReadRows = NDArray[np.void]  # rows of READ_DTYPE, shape (reads,)


@dataclass(frozen=True, eq=False)
class Level:
    """What was measured with one number of readers."""

    readers: int
    seconds: float  # duration of the measurement
    rows: ReadRows  # all reads, including those of the warm-up
    mb_per_second: float
    half_width_percent: float  # half width of the 95 % interval of `mb_per_second`, from its values in windows of time

    @property
    def read_seconds(self) -> float:
        """Mean duration of a read."""
        return float((self.rows["end_ns"] - self.rows["begin_ns"]).mean()) / 1e9

    @property
    def decoding_share(self) -> float:
        """Share of their time for which the readers decoded."""
        return float(self.rows["decode_ns"].sum() / (self.rows["end_ns"] - self.rows["begin_ns"]).sum())


def measure_levels(
    job: TrainingJob,
    *,
    evicts: bool,
    levels: Sequence[int] = (),
    repeat: int | None = None,
    most_seconds: float = MAX_SECONDS,
) -> Iterator[Level]:
    """Yield the levels of a job of one rank as they are measured; call it in the main thread. Raises DlemuError.

    `evicts`: evict the dataset before each level. `most_seconds`: maximum duration of all levels together.
    `levels`: numbers of readers; if empty, 1, 2, 4, ... until two levels in a row gain less than 3 %.
    `repeat`: number of readers to measure again if there is time; 0: the fewest at full speed; None: no repetition.
    """
    spec, samples_per_read = reading_spec(job)
    by_memory = int(host_memory().available_bytes * MEMORY_SHARE / max(1, spec.slot_bytes))
    by_samples = job.dataset.train.num_samples // (2 * samples_per_read)  # at least two reads for each reader
    max_readers = max(1, min(MAX_READERS, by_memory, by_samples))
    started = time.monotonic()
    seconds = LEVEL_SECONDS  # duration of the next level
    best_mb_per_second = 0.0
    flat_levels = 0  # number of the last levels in a row that gained less than 3 %
    pending = [min(readers, max_readers) for readers in levels] or [1]
    measured: list[Level] = []

    def measure(readers: int, seconds: float) -> Level:
        max_reads = job.train_plan.num_samples // samples_per_read
        if evicts:
            evict(job, 0, 1, write_first=not measured)
            max_reads = _max_reads(job, samples_per_read, readers)
        measured.append(_level(job, spec, readers, max_reads, seconds))
        return measured[-1]

    while pending:
        readers = pending.pop(0)
        level = measure(readers, seconds)
        yield level
        gain_percent = 100 * (level.mb_per_second / best_mb_per_second - 1) if best_mb_per_second else 100.0
        flat_levels = flat_levels + 1 if gain_percent < 3 else 0
        best_mb_per_second = max(best_mb_per_second, level.mb_per_second)
        read_seconds = level.read_seconds
        if gain_percent < 50:
            read_seconds *= 2  # twice as many readers will share about the same throughput
        seconds = min(MAX_LEVEL_SECONDS, max(LEVEL_SECONDS, MIN_READS_PER_READER * read_seconds))
        in_time = time.monotonic() - started + seconds <= most_seconds
        if not levels and flat_levels < 2 and in_time and 2 * readers <= max_readers:
            pending.append(2 * readers)
    if repeat is None:
        return
    readers = min(max_readers, repeat) or fewest_at_full_speed(measured)
    nearest = min(measured, key=lambda level: abs(level.readers - readers))
    for repetition in range(REPEATS):
        seconds_left = (most_seconds - (time.monotonic() - started)) / (REPEATS - repetition)
        if seconds_left < LEVEL_SECONDS:
            return
        yield measure(readers, min(seconds_left, repeat_seconds(nearest, readers)))


def _max_reads(job: TrainingJob, samples_per_read: int, readers: int) -> int:
    """Return how many reads a level may make until too many of them are served by what read-ahead has cached."""
    plan, total_bytes = job.train_plan, job.dataset.total_bytes
    all_reads = plan.num_samples // samples_per_read
    if plan.num_samples_per_file == 1 and not job.workload.reader.worker_streams:  # no two readers share a file
        return ENDLESS
    in_order = plan.num_samples_per_file == 1 or not plan.sample_shuffle
    no_read_ahead = total_bytes >= READ_AHEAD_BYTES * plan.num_samples or job.workload.reader.odirect
    if in_order or no_read_ahead:  # read-ahead caches no sample of a later read
        return all_reads
    max_bytes = 0.1 * total_bytes  # that read-ahead may cache
    return min(all_reads, max(2 * readers, int(max_bytes / READ_AHEAD_BYTES / samples_per_read)))


def fewest_at_full_speed(levels: Sequence[Level]) -> int:
    """Return the smallest number of readers that got 95 % of the highest throughput."""
    full_speed = 0.95 * max(level.mb_per_second for level in levels)
    return min(level.readers for level in levels if level.mb_per_second >= full_speed)


def repeat_seconds(level: Level, readers: int) -> float:
    """Return how long each repetition must take with `readers`, judging by a level with a similar number of readers."""
    # The half width falls with the square root of time: half of it takes four times as long.
    precise_seconds = level.seconds * (level.half_width_percent / TARGET_HALF_WIDTH_PERCENT) ** 2 / REPEATS
    slowdown = max(1.0, readers / level.readers)  # of each read, if more readers share the same throughput
    reads_seconds = MIN_READS_PER_READER * level.read_seconds * slowdown
    return max(LEVEL_SECONDS, reads_seconds, min(precise_seconds, MAX_REPEAT_SECONDS))


def loader_costs(job: TrainingJob) -> HostCosts:
    """Return the loader's overhead, measured in a separate process with batches that take 20 ms and read nothing."""
    if not job.workload.reader.read_threads:
        return HostCosts()
    seconds, role = job.timeout_seconds, Role("the loader's process", "use a smaller batch")
    (costs,) = run_crew(_loader_costs, [job], role, timeout_seconds=seconds, most_seconds=seconds)
    return costs


def _loader_costs(_: Comm, job: TrainingJob) -> HostCosts:
    pause = Duration(mean=0.02 / job.workload.reader.batch_size)
    spec = job.loader_spec(0)
    spec = replace(spec, reader=replace(spec.reader, preprocess_time=pause, preprocess="sleep"))
    without_reads = replace(spec.phases["ceiling"], preprocesses=True)
    loader = job.loader_class()(replace(spec, phases={"train": without_reads, "ceiling": without_reads}))
    loader.start()
    times = []
    request_ns = time.monotonic_ns()
    for batch in loader.batches("ceiling", 1, 40 * spec.reader.read_threads):
        times.append((batch.trace.started_ns, batch.trace.finished_ns, time.monotonic_ns(), batch.trace.worker))
    loader.close()
    started, finished, received, worker = np.array(times).T
    by_worker = [worker == number for number in np.unique(worker)]
    gaps = [np.median(started[is_own][1:] - finished[is_own][:-1]) for is_own in by_worker]
    hand_overs = received[1:] - np.maximum(finished[1:], received[:-1])
    return HostCosts(
        hand_over_seconds=max(0.0, float(np.median(hand_overs))) / 1e9,
        between_seconds=max(0.0, float(np.median(gaps))) / 1e9,
        epoch_start_seconds=max(0.0, float(started.min() - request_ns)) / 1e9,
    )


def reading_spec(job: TrainingJob) -> tuple[LoaderSpec, int]:
    """Return the loader spec of the readers, and the number of samples per read."""
    spec, batch_size = job.loader_spec(0), job.workload.reader.batch_size
    sample_bytes = max(1, job.dataset.total_bytes // max(1, job.dataset.train.num_samples))
    samples = max(1, min(batch_size, READ_BYTES // sample_bytes), job.group_rows)
    phase = replace(spec.phases["train"], batch_size=samples)
    if job.read_by_loader:
        phase = replace(phase, fetch=replace(phase.fetch, engine="matched"))
    # The order in which one rank with one reader would read all samples; the readers share its steps. A plan of streams
    # becomes a plain `Plan`, which has the same fields.
    order = Plan(**{field.name: getattr(job.train_plan, field.name) for field in fields(Plan)})
    order = replace(order, batch_size=samples, ranks=1, worker_streams=1)
    phase = replace(phase, plan=RankPlan(order, 0, endless=True))
    return replace(spec, phases={"train": phase}, reader=replace(spec.reader, preprocess_time=NO_TIME)), samples


def _level(job: TrainingJob, spec: LoaderSpec, readers: int, max_reads: int, seconds: float) -> Level:
    """Measure one level for `seconds`, or until the readers have made `max_reads` reads together."""
    results = run_crew(
        lambda comm, _: _read(comm, job, spec, readers, max_reads, seconds),
        range(readers),
        _READER,
        timeout_seconds=job.timeout_seconds,
        most_seconds=SETTLE_SECONDS + seconds + job.timeout_seconds,
    )
    began_ns, _ = results[0]  # the same for all readers
    return judge_level(np.concatenate([rows for _, rows in results]), readers, began_ns, seconds)


def judge_level(rows: ReadRows, readers: int, began_ns: int, seconds: float) -> Level:
    """Return a level: its throughput from the end of the warm-up until a reader has finished. Raises SpaceError."""
    if not len(rows):
        raise SpaceError("the dataset is too small for this many readers")
    last_ends = [rows["end_ns"][rows["reader"] == reader].max() for reader in np.unique(rows["reader"])]
    all_have_read = len(last_ends) == readers
    last_ns = int(min(last_ends) if all_have_read else max(last_ends))
    end_ns = min(began_ns + round((SETTLE_SECONDS + seconds) * 1e9), last_ns)
    if end_ns - began_ns < (SETTLE_SECONDS + 0.25 * seconds) * 1e9:  # a reader had too little to read
        end_ns = max(end_ns, int(np.quantile(rows["end_ns"], 0.9)), began_ns + 2)
    begin_ns = began_ns + min(round(SETTLE_SECONDS * 1e9), round(1 / 3 * (end_ns - began_ns)))
    # 20 windows, as 10 to 30 give good intervals: Schmeiser 1982 (dlemu.metrics.t_interval)
    edges = np.linspace(begin_ns, end_ns, 21)
    reads = Intervals(rows["begin_ns"].astype(float), np.maximum(rows["end_ns"], rows["begin_ns"] + 1.0), edges)
    window_bytes = np.diff(reads.cumulative(rows["app_bytes"].astype(float)))
    measured_seconds = (end_ns - begin_ns) / 1e9
    percents = 100 * window_bytes / max(1.0, window_bytes.mean())  # of the mean
    return Level(
        readers=readers,
        seconds=measured_seconds,
        rows=rows,
        mb_per_second=float(window_bytes.sum()) / 1e6 / measured_seconds,
        half_width_percent=estimate(percents, 0.95).half_width_percent,
    )


def _read(
    comm: Comm, job: TrainingJob, spec: LoaderSpec, readers: int, max_reads: int, seconds: float
) -> tuple[int, ReadRows]:
    """Make this reader's share of `max_reads` reads, for `seconds`; return when all began (ns), and a row per read."""
    os.nice(spec.reader.nice)
    maker, buffer = BatchMaker(spec, comm.rank), AlignedBuffer(spec.slot_bytes)
    view = buffer.view(spec.slot_bytes)
    epoch = len(job.schedule) + readers  # each level has another epoch, so another order of shuffled samples
    plan, storage = spec.phases["train"].plan, open_storage(job.workload.storage_spec.buffered)
    began_ns = comm.all_reduce_max(time.monotonic_ns())
    deadline = time.monotonic() + SETTLE_SECONDS + seconds
    steps = range(1 + comm.rank, max_reads + 1, readers)  # a read is a step of `plan`
    if job.workload.reader.worker_streams or job.group_rows:
        # Consecutive steps for each reader, so that no row group is read twice
        share = max_reads // readers
        steps = range(1 + comm.rank * share, 1 + (comm.rank + 1) * share)
    rows = []
    for step in steps:
        if time.monotonic() > deadline:
            break
        trace = maker.make("train", epoch, step, 0, view)
        values = (trace.started_ns, trace.finished_ns, trace.app_bytes, trace.samples, trace.decode_ns, trace.cpu_ns)
        rows.append((*values, comm.rank))
        if max_reads == ENDLESS:
            for sample in plan.sample_ids(epoch, step):
                storage.evict(job.dataset.train.path(int(sample)), write_first=False)
    return began_ns, np.array(rows, READ_DTYPE)


def merge_levels(levels: Sequence[Level]) -> list[Level]:
    """Return one level for each number of readers, in rising order; repeated levels are weighted by their duration."""
    merged = []
    for readers in sorted({level.readers for level in levels}):
        repeated = [level for level in levels if level.readers == readers]
        parts = [(level.seconds, level.mb_per_second, level.half_width_percent) for level in repeated]
        seconds, rates, widths = np.array(parts).T
        mean, total_seconds = float(rates @ seconds / seconds.sum()), float(seconds.sum())
        # The half width of the mean follows from those of the levels, but is at least the distance of any level from
        # the mean, of which short levels count less.
        within = math.sqrt(float(((widths * seconds) ** 2).sum())) / total_seconds
        between = 100 * np.abs(rates / mean - 1) * np.sqrt(seconds / total_seconds)
        width = min(MAX_HALF_WIDTH_PERCENT, max(within, float(between.max())))
        merged.append(Level(readers, total_seconds, np.concatenate([level.rows for level in repeated]), mean, width))
    return merged
