"""A workload's own pattern of reading at rising numbers of readers: what the storage gives to 1, 2, 4, ... of them.

Readers are processes that make batches as a loader's workers do, by the same `BatchMaker`, each sample of the dataset
once. A clean process forks them, so that callers may have threads, an event loop or a GPU.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.errors import SpaceError
from datagen.inspection import inspect
from dlemu.comm.cgroup_limits import host_memory
from dlemu.comm.failure import Role
from dlemu.config import check_runnable, datagen_command
from dlemu.config.duration import NO_TIME, Duration
from dlemu.config.schema import Workload
from dlemu.jobs.training.evict import evict
from dlemu.jobs.training.plan import TrainingJob, make_job
from dlemu.loaders.loader_base import BatchMaker, Loader, LoaderSpec
from dlemu.metrics.t_interval import estimate
from dlemu.plan.samples import Plan, RankPlan
from dlemu.results.drive import READ_AHEAD_BYTES
from dlemu.results.levels import READ_DTYPE, Level, ReadRows
from dlemu.runner.clean_process import run_clean
from dlemu.runner.cold import treatment_of
from dlemu.runner.crew import Worker, run_crew

SETTLE_SECONDS = 0.5
"""Of each level, before what counts: caches, credits and throttles that were idle let a first burst pass."""
LEVEL_SECONDS = 2.0  # nine levels, to 256 readers, then take 23 s; shorter ones have wider intervals
READS_EACH = 6  # fewer: those that the level's ends cut weigh too much; more: slow storage takes minutes
"""Reads that each reader should get done in a level."""
MOST_LEVEL_SECONDS = 12.0  # eight of these, to 128 readers, fit MOST_SECONDS
MOST_SECONDS = 110.0  # two minutes with the starts of processes (docs/prediction.md, section 1)
"""Of all levels together."""
FULL = 0.95
"""Share of the most that a level gave from which on it shows the storage's whole speed."""
PASSES, WANTED_PERCENT = 2, 1.0
"""How often the level that matters most is measured again, and the half width that all of it is to reach."""
MOST_AGAIN_SECONDS = 30.0
"""Of a pass: what is not known after two of these would take hours."""
WINDOWS, CONFIDENCE = 20, 0.95  # 10 to 30 windows do: Schmeiser 1982 (dlemu.metrics.t_interval)
"""Of a level, for its interval."""
LEAST_CORRELATION = -0.8  # at -1 the interval would have no width
"""That is believed of neighbouring windows."""
READ_BYTES = 32 << 20  # larger: a slow drive finishes too few reads in a level
"""A read is a batch, or as many of its samples as have about so many bytes; but one at least."""
MOST_READERS = 256  # each is a process; more crowd the cores of most hosts before the storage
MOST_COVERED = 0.1
"""Share of the dataset that a level may have the kernel read: what is read around one sample serves others later."""
FLAT_PERCENT = 3.0
"""Less than this from one level to the next, twice, and more readers are no use."""
MEMORY_SHARE = 0.25  # of what is available, for buffers: a probe must not push others into swap
COST_BATCHES, COST_SECONDS = 40, 0.02
"""Batches of each worker, and how long each takes, in the measurement of what the loader takes for itself."""
_FEWER = "use fewer readers or a smaller batch"
_PROCESS, _READER = Role("the process of the readers", _FEWER), Role("reader", _FEWER)


@dataclass(frozen=True, kw_only=True)
class LoaderCosts:
    """What the loader takes for itself, by batches that are read in no time and then made to take a moment; seconds."""

    hand_over_seconds: float
    """From a batch that is complete in its worker to the trainer's hands, median."""
    between_seconds: float
    """A worker's from one batch to the next that waits for it, median."""
    epoch_start_seconds: float
    """From requesting an epoch's batches to the begin of the first."""


@dataclass(frozen=True)
class _Request:
    """What the clean process is to do."""

    job: TrainingJob
    wanted: tuple[int, ...]
    """Levels, or none: as many as there is something to learn from."""
    again: int | None
    """Readers to measure again, surely; 0: as many as just get all; None: none."""
    most: int
    evicts: bool
    costs: bool


def probe_pattern(
    job: TrainingJob,
    *,
    evicts: bool,
    levels: tuple[int, ...] = (),
    again: int | None = None,
    most: int = MOST_READERS,
    with_costs: bool = True,
    on_level: Callable[[Level], None] | None = None,
) -> tuple[tuple[Level, ...], LoaderCosts | None]:
    """Return what the storage gave to each number of readers, and what the loader takes; `job` is of one accelerator.

    `evicts`: the dataset's pages are dropped before each level, so that the storage serves it. `again`: so many readers
    (0: the fewest that get all) are measured twice more in the end, as long as their speed is uncertain and there is
    time; the levels then have several of that number. Raises what a reader raised, and DlemuError where the process of
    the readers ended otherwise.
    """
    made: list[Level] = []

    def take(level: Level) -> None:
        made.append(level)
        if on_level is not None:
            on_level(level)

    request = _Request(job, levels, again, most, evicts, with_costs)
    patience_seconds = MOST_SECONDS + 2 * job.workload.timeout_seconds
    costs = run_clean(_measure_all, request, _PROCESS, patience_seconds=patience_seconds, on_message=take)
    return tuple(made), costs


def _measure_all(request: _Request, report: Callable[[Level], None]) -> LoaderCosts | None:
    """Be the clean process: say each level, and return the loader's costs."""
    for level in _measure(request):
        report(level)
    if request.costs and request.job.workload.reader.read_threads > 0:
        return _loader_costs(request.job)
    return None


def _measure(request: _Request) -> Iterator[Level]:
    spec, samples = reading_spec(request.job)
    room = host_memory().available_bytes * MEMORY_SHARE
    most = max(1, min(request.most, int(room / max(1, spec.slot_bytes))))
    most = max(1, min(most, request.job.found.train.num_samples // (2 * samples)))
    seconds, began, last, flat = LEVEL_SECONDS, time.monotonic(), 0.0, 0
    waiting = list(request.wanted) or [1]
    measured: list[Level] = []

    def measure(readers: int, seconds: float) -> Level:
        if request.evicts:
            evict(request.job, 0, 1, write_first=not measured)
        steps = _most_reads(request, samples, readers)
        measured.append(_level(request.job, spec, samples, readers, steps, seconds))
        return measured[-1]

    while waiting:
        readers = waiting.pop(0)
        level = measure(readers, seconds)
        yield level
        grown = 100 * (level.mb_per_second / last - 1) if last else 100.0
        flat = flat + 1 if grown < FLAT_PERCENT else 0
        last = max(last, level.mb_per_second)
        seconds = min(
            MOST_LEVEL_SECONDS, max(LEVEL_SECONDS, READS_EACH * _read_seconds(level) * (2 if grown < 50 else 1))
        )
        over = time.monotonic() - began + seconds > MOST_SECONDS
        if not request.wanted and flat < 2 and not over and 2 * readers <= most:
            waiting.append(2 * readers)
    if request.again is None:
        return
    readers = min(most, request.again) or fewest_that_get_all(measured)
    nearest = min(measured, key=lambda level: abs(level.readers - readers))
    for turn in range(PASSES):
        left = (MOST_SECONDS - (time.monotonic() - began)) / (PASSES - turn)
        if left < LEVEL_SECONDS:
            return
        yield measure(readers, min(left, seconds_again(nearest, readers)))


def _most_reads(request: _Request, samples: int, readers: int) -> int:
    """Return how many reads a level may make at most, so that it is the storage that is measured, and not memory."""
    plan, total_bytes = request.job.train_plan, request.job.found.total_bytes
    every = plan.num_samples // samples
    apart = plan.num_samples_per_file == 1 or not plan.sample_shuffle
    alone = total_bytes >= READ_AHEAD_BYTES * plan.num_samples or request.job.workload.reader.odirect
    if not request.evicts or apart or alone:  # no sample is read because of another
        return every
    return min(every, max(2 * readers, int(MOST_COVERED * total_bytes / READ_AHEAD_BYTES / samples)))


def fewest_that_get_all(levels: Sequence[Level]) -> int:
    """Return the fewest readers that got about as much as any number of them."""
    enough = FULL * max(level.mb_per_second for level in levels)
    return min(level.readers for level in levels if level.mb_per_second >= enough)


def seconds_again(level: Level, readers: int) -> float:
    """Return how long each pass of so many readers takes, so that all together are as sure as wanted.

    The half width of a mean falls with the square root of the time.
    """
    wanted = level.seconds * (level.half_width_percent / WANTED_PERCENT) ** 2 / PASSES
    slower = max(1.0, readers / level.readers)  # each of them, where they share
    return max(LEVEL_SECONDS, READS_EACH * _read_seconds(level) * slower, min(wanted, MOST_AGAIN_SECONDS))


def _read_seconds(level: Level) -> float:
    """Return the mean time of a read."""
    return float((level.rows["end_ns"] - level.rows["begin_ns"]).mean()) / 1e9


def _loader_costs(job: TrainingJob) -> LoaderCosts:
    """Have the loader deliver batches that cost nothing to read, and see what passes between them."""
    batch_size = job.workload.reader.batch_size
    pause = Duration(mean=COST_SECONDS / batch_size)
    spec = replace(job.loader_spec(0), preprocess_time=pause, preprocess="sleep")
    unread = replace(spec.phases["ceiling"], preprocesses=True)
    loader: Loader = registry.find("dlemu.loaders", job.workload.reader.data_loader, "Loader")(
        replace(spec, phases={"train": unread, "ceiling": unread})
    )
    loader.start()
    times = []
    asked_ns = time.monotonic_ns()
    for batch in loader.batches("ceiling", 1, COST_BATCHES * spec.read_threads):
        times.append((batch.trace.started_ns, batch.trace.finished_ns, time.monotonic_ns(), batch.trace.worker))
    loader.close()
    started, finished, got, worker = np.array(times).T
    between = [np.median(started[worker == own][1:] - finished[worker == own][:-1]) for own in np.unique(worker)]
    waited = got[1:] - np.maximum(finished[1:], got[:-1])
    return LoaderCosts(
        hand_over_seconds=max(0.0, float(np.median(waited))) / 1e9,
        between_seconds=max(0.0, float(np.median(between))) / 1e9,
        epoch_start_seconds=max(0.0, float(started.min() - asked_ns)) / 1e9,
    )


def reading_spec(job: TrainingJob) -> tuple[LoaderSpec, int]:
    """Return what the readers are given, and how many samples a read has."""
    spec, batch_size = job.loader_spec(0), job.workload.reader.batch_size
    mean = max(1, job.found.total_bytes // max(1, job.found.train.num_samples))
    samples = max(1, min(batch_size, READ_BYTES // mean))
    phase = replace(spec.phases["train"], batch_size=samples)
    if job.read_by_loader:
        phase = replace(phase, fetch=replace(phase.fetch, engine="matched"))
    # All samples in the order of an epoch, as one rank would read them by a reader; readers share its steps.
    order = Plan(**{part.name: getattr(job.train_plan, part.name) for part in fields(Plan)})
    phase = replace(phase, plan=RankPlan(replace(order, batch_size=samples, ranks=1, worker_streams=1), 0))
    return replace(spec, phases={"train": phase}, preprocess_time=NO_TIME), samples


def _level(job: TrainingJob, spec: LoaderSpec, samples: int, readers: int, steps: int, seconds: float) -> Level:
    """Read with so many readers for so long, and not more than so many reads."""
    began_ns = 0

    def begin() -> None:
        nonlocal began_ns
        began_ns = time.monotonic_ns()

    timeout_seconds = job.workload.timeout_seconds
    parts = run_crew(
        lambda worker, _: _read(worker, job, spec, readers, steps, seconds),
        range(readers),
        _READER,
        timeout_seconds=timeout_seconds,
        most_seconds=SETTLE_SECONDS + seconds + timeout_seconds,
        on_ready=begin,
    )
    return judge_level(np.concatenate(parts), readers, began_ns, seconds)


def judge_level(rows: ReadRows, readers: int, began_ns: int, seconds: float) -> Level:
    """Return the speed of some reads: what was read between settling and the end, each read's bytes spread evenly."""
    if not len(rows):
        raise SpaceError("the dataset is too small for this many readers")
    last = rows["end_ns"].max() if len(np.unique(rows["reader"])) < readers else _earliest_last(rows)
    end_ns = min(began_ns + round((SETTLE_SECONDS + seconds) * 1e9), int(last))
    begin_ns = began_ns + round(SETTLE_SECONDS * 1e9)
    short = end_ns - begin_ns < 0.25e9 * seconds  # too little of the level is left: the settling counts, too
    if short:
        begin_ns = int(rows["begin_ns"].min())
        end_ns = max(end_ns, int(np.quantile(rows["end_ns"], 0.9)), begin_ns + 1)
    windows = np.array([_read_between(rows, *edges) for edges in pairwise(np.linspace(begin_ns, end_ns, WINDOWS + 1))])
    read, length = float(windows.sum()), (end_ns - begin_ns) / 1e9
    return Level(
        readers=readers,
        seconds=length,
        rows=rows,
        mb_per_second=read / 1e6 / length,
        half_width_percent=_half_width_percent(100 * windows / max(1.0, windows.mean())),
        cpu_seconds_per_gb=float(rows["cpu_ns"].sum()) / max(1.0, float(rows["app_bytes"].sum())),
        short=short,
    )


def _half_width_percent(windows: NDArray[np.float64]) -> float:
    """Return the half width of the interval of the mean of a level's windows, in percent of it.

    A storage that serves in bursts (a throttle by its slices, readers in step) makes one window rich and the next one
    poor, and the mean knows none of it: where neighbours are unlike beyond chance (2 standard errors of a correlation
    of `WINDOWS` values) they count for more, by the formula by which those that are alike count for less.
    """
    found = estimate(windows, CONFIDENCE).half_width_percent
    deviations = windows - windows.mean()
    total = float(deviations @ deviations)
    correlation = float(deviations[1:] @ deviations[:-1]) / total if total > 0 else 0.0
    if correlation > -2 / math.sqrt(len(windows)):
        return found
    unlike = max(correlation, LEAST_CORRELATION)
    return found * math.sqrt((1 + unlike) / (1 - unlike))


def _read_between(rows: ReadRows, begin_ns: float, end_ns: float) -> float:
    """Return the bytes read between two moments, each read's spread evenly over its time."""
    took = np.maximum(rows["end_ns"] - rows["begin_ns"], 1)
    share = (np.minimum(rows["end_ns"], end_ns) - np.maximum(rows["begin_ns"], begin_ns)).clip(0) / took
    return float((rows["app_bytes"] * share).sum())


def _earliest_last(rows: ReadRows) -> int:
    """Return when the first reader had nothing more to read."""
    return min(int(rows["end_ns"][rows["reader"] == reader].max()) for reader in np.unique(rows["reader"]))


def _read(worker: Worker, job: TrainingJob, spec: LoaderSpec, readers: int, steps: int, seconds: float) -> ReadRows:
    """Be one reader."""
    os.nice(spec.nice)
    maker, room = BatchMaker(spec, worker.number), AlignedBuffer(spec.slot_bytes)
    out = room.view(spec.slot_bytes)
    epoch, rows = len(job.schedule) + readers, []
    worker.ready()
    deadline = time.monotonic() + SETTLE_SECONDS + seconds
    turns, stretch = range(1 + worker.number, steps + 1, readers), steps // readers
    if job.workload.reader.worker_streams:  # as its loader deals batches to workers: a stretch of the epoch to each
        turns = range(1 + worker.number * stretch, 1 + (worker.number + 1) * stretch)
    for step in turns:
        if time.monotonic() > deadline:
            break
        trace = maker.make("train", epoch, step, 0, out)
        numbers = (trace.started_ns, trace.finished_ns, trace.app_bytes, trace.samples, trace.decode_ns, trace.cpu_ns)
        rows.append((*numbers, worker.number))
    return np.array(rows, READ_DTYPE)


def measure_pattern(
    workload: Workload, *, cached: bool, readers: tuple[int, ...], on_level: Callable[[Level], None]
) -> None:
    """Read a workload's dataset as training does, by each of so many readers; of none by 1, 2, 4, ...

    Raises UserError for a workload that can't be trained or has no dataset, DlemuError when a reader fails.
    """
    check_runnable(workload)
    found = inspect(workload.dataset, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)
    how = treatment_of(workload, found.total_bytes, cached=cached)
    job = make_job(workload, 1, found, folder=os.devnull, started_at="")
    probe_pattern(job, evicts=how in ("evicted", "large"), levels=readers, with_costs=False, on_level=on_level)
