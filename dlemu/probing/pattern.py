"""A workload's own pattern of reading at rising numbers of readers: what the storage gives to 1, 2, 4, ... of them.

Readers are processes that make batches as a loader's workers do, by the same `BatchMaker`, each sample of the dataset
once. A clean process forks them, so that callers may have threads, an event loop or a GPU.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.errors import DlemuError, SpaceError
from dlemu.comm import die_with_parent
from dlemu.comm.cgroup_limits import host_memory, who_killed
from dlemu.config.duration import NO_TIME, Duration
from dlemu.emulator.evict import evict
from dlemu.emulator.job import Job
from dlemu.loaders.loader_base import BatchMaker, Loader, LoaderSpec
from dlemu.metrics.t_interval import estimate

SETTLE_SECONDS = 0.5
"""Of each level, before what counts: caches, credits and throttles that were idle let a first burst pass."""
LEVEL_SECONDS = 2.0
READS_EACH = 6
"""Reads that each reader should get done in a level."""
MOST_LEVEL_SECONDS = 12.0
MOST_SECONDS = 110.0
"""Of all levels together."""
FULL = 0.95
"""Share of the most that a level gave from which on it tells of the storage's whole speed."""
PASSES, WANTED_PERCENT = 2, 1.0
"""How often the level that matters most is measured again, and the half width that all of it is to reach."""
MOST_AGAIN_SECONDS = 30.0
"""Of a pass: what is not known after two of these would take hours."""
WINDOWS, CONFIDENCE = 20, 0.95
"""Of a level, for its interval."""
LEAST_CORRELATION = -0.8
"""That is believed of neighbouring windows."""
READ_BYTES = 32 << 20
"""A read is a batch, or as many of its samples as have about so many bytes; but one at least."""
MOST_READERS = 256
FLAT_PERCENT = 3.0
"""Less than this from one level to the next, twice, and more readers are no use."""
MEMORY_SHARE = 0.25
EXIT_SECONDS = 5.0
"""That a reader may take to end once it has told what it read."""
COST_BATCHES, COST_SECONDS = 40, 0.02
"""Batches of each worker, and how long each takes, in the measurement of what the loader takes for itself."""
_PROGRAM = "from dlemu.probing.pattern import main; main()"

READ_DTYPE = np.dtype(
    [(name, np.int64) for name in ("begin_ns", "end_ns", "app_bytes", "samples", "decode_ns", "cpu_ns", "reader")]
)
ReadRows = NDArray[np.void]
"""Reads, one row each, shape (reads,)."""


@dataclass(frozen=True, eq=False)
class Level:
    """What so many readers got."""

    readers: int
    seconds: float
    """In which it was measured."""
    rows: ReadRows
    """All reads, also those before."""
    mb_per_second: float
    half_width_percent: float
    """Of the 95 % interval of its speed, by windows of its time."""
    cpu_seconds_per_gb: float
    short: bool
    """The dataset was read to its end before the time was over."""


@dataclass(frozen=True, kw_only=True)
class LoaderCosts:
    """What the loader takes for itself, by batches that are read in no time and then made to take a moment; seconds."""

    hand_over_seconds: float
    """From a batch that is complete in its worker to the trainer's hands, median."""
    between_seconds: float
    """A worker's from one batch to the next that waits for it, median."""
    epoch_start_seconds: float
    """From asking for an epoch's batches to the begin of the first."""


@dataclass(frozen=True)
class _Request:
    """What the clean process is to do."""

    job: Job
    wanted: tuple[int, ...]
    """Levels, or none: as many as there is something to learn from."""
    again: int | None
    """Readers to measure again, surely; 0: as many as just get all; None: none."""
    most: int
    evicts: bool
    costs: bool
    parent: int


def probe_pattern(
    job: Job,
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
    request = _Request(job, levels, again, most, evicts, with_costs, os.getpid())
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    made: list[Level] = []
    costs: LoaderCosts | None = None
    whole = False
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump(request, process.stdin)
        while True:
            try:
                message = pickle.load(process.stdout)
            except (EOFError, pickle.UnpicklingError):  # it was killed, perhaps in mid-message
                break
            if isinstance(message, BaseException):
                raise message
            if message is None:
                whole = True
                break
            if isinstance(message, LoaderCosts):
                costs = message
                continue
            made.append(message)
            if on_level is not None:
                on_level(message)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    if not whole:
        raise DlemuError(f"the process of the readers was killed after {len(made)} levels; {who_killed()}")
    return tuple(made), costs


def main() -> None:
    """Be the clean process: read a request, measure, and say each level."""
    request: _Request = pickle.load(sys.stdin.buffer)
    die_with_parent(request.parent)
    say = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        for told in _measure(request):
            pickle.dump(told, say)
            say.flush()
        if request.costs and request.job.workload.reader.read_threads > 0:
            pickle.dump(_loader_costs(request.job), say)
            say.flush()
        pickle.dump(None, say)  # that is all: who died in mid-way says less
        say.flush()
    except BaseException as error:  # carried to the caller
        known = error if isinstance(error, DlemuError) else DlemuError(f"{type(error).__name__}: {error}")
        pickle.dump(known, say)
        say.flush()


def _measure(request: _Request) -> Any:
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
        measured.append(_level(request.job, spec, samples, readers, seconds))
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


def _loader_costs(job: Job) -> LoaderCosts:
    """Have the loader deliver batches that cost nothing to read, and see what passes between them."""
    batch_size = job.workload.reader.batch_size
    spec = replace(job.loader_spec(0), preprocess_time=Duration(mean=COST_SECONDS / batch_size))
    unread = spec.phases["ceiling"]
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


def reading_spec(job: Job) -> tuple[LoaderSpec, int]:
    """Return what the readers are given, and how many samples a read has."""
    spec, batch_size = job.loader_spec(0), job.workload.reader.batch_size
    mean = max(1, job.found.total_bytes // max(1, job.found.train.num_samples))
    samples = max(1, min(batch_size, READ_BYTES // mean))
    phase = replace(spec.phases["train"], batch_size=samples)
    if job.read_by_loader:
        phase = replace(phase, fetch=replace(phase.fetch, engine="fast"))
    phase = replace(phase, plan=_Once(job, samples))
    return replace(spec, phases={"train": phase}, preprocess_time=NO_TIME), samples


@dataclass(frozen=True)
class _Once:
    """Reads of so many samples each, in the order of an epoch that training does not come to; each sample once."""

    job: Job
    samples: int

    def sample_ids(self, epoch: int, step: int) -> NDArray[np.int64]:
        return self.batches(epoch, np.array([step])).ravel()

    def batches(self, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        plan = self.job.train_plan
        positions = (steps[:, np.newaxis] - 1) * self.samples + np.arange(self.samples)
        return plan.samples_at(epoch, positions.ravel() % plan.num_samples).reshape(positions.shape)

    def runs(self, epoch: int, steps: NDArray[np.int64]) -> None:
        return None


def _level(job: Job, spec: LoaderSpec, samples: int, readers: int, seconds: float) -> Level:
    """Read with so many readers for so long."""
    context = get_context("fork")
    gate = os.pipe()  # all begin when its end for writing is closed; no lock, which a killed one could keep
    lines: list[Connection] = []
    processes = []
    for number in range(readers):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_read, args=(job, spec, samples, number, readers, seconds, gate, os.getpid(), theirs)
        )
        process.daemon = True
        process.start()
        processes.append(process)
        theirs.close()
        lines.append(ours)
    os.close(gate[0])
    try:
        for line in lines:
            _received(line, seconds)  # it is ready
    finally:
        os.close(gate[1])
    began_ns = time.monotonic_ns()
    rows = np.concatenate([_received(line, seconds) for line in lines])
    for process in processes:
        process.join(EXIT_SECONDS)  # whoever is waited for has its CPU time counted as ours
    return judge_level(rows, readers, began_ns, seconds)


def _received(line: Connection, seconds: float) -> ReadRows:
    """Return what a reader says; raises what it raised, and DlemuError when it says nothing."""
    if not line.poll(seconds + 600):
        raise DlemuError(
            f"a reader has waited more than {600 + seconds:.0f} s: the storage is stuck (`dmesg`, mount state)"
        )
    try:
        answer: ReadRows | BaseException = line.recv()
    except (EOFError, OSError) as error:
        raise DlemuError(f"a reader was killed; {who_killed()}") from error
    if isinstance(answer, BaseException):
        raise answer
    return answer


def judge_level(rows: ReadRows, readers: int, began_ns: int, seconds: float) -> Level:
    """Return the speed of some reads: what was read between settling and the end, each read's bytes spread evenly."""
    if not len(rows):
        raise SpaceError("the dataset is too small for so many readers")
    last = rows["end_ns"].max() if len(np.unique(rows["reader"])) < readers else _earliest_last(rows)
    end_ns = min(began_ns + round((SETTLE_SECONDS + seconds) * 1e9), int(last))
    begin_ns = began_ns + round(SETTLE_SECONDS * 1e9)
    short = end_ns - begin_ns < 0.25e9 * seconds
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


def _read(
    job: Job,
    spec: LoaderSpec,
    samples: int,
    number: int,
    readers: int,
    seconds: float,
    gate: tuple[int, int],
    parent: int,
    line: Connection,
) -> None:
    """Be one reader."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(gate[1])
    os.nice(spec.nice)
    try:
        maker, room = BatchMaker(spec, number), AlignedBuffer(spec.slot_bytes)
        out = room.view(spec.slot_bytes)
        epoch, steps = len(job.schedule) + readers, job.found.train.num_samples // samples
        rows = []
        line.send(np.zeros(0, READ_DTYPE))
        os.read(gate[0], 1)
        deadline = time.monotonic() + SETTLE_SECONDS + seconds
        for step in range(1 + number, steps + 1, readers):
            if time.monotonic() > deadline:
                break
            trace = maker.make("train", epoch, step, 0, out)
            numbers = (
                trace.started_ns,
                trace.finished_ns,
                trace.app_bytes,
                trace.samples,
                trace.decode_ns,
                trace.cpu_ns,
            )
            rows.append((*numbers, number))
        line.send(np.array(rows, READ_DTYPE))
    except BaseException as error:  # carried to the caller
        line.send(error if isinstance(error, DlemuError) else DlemuError(f"{type(error).__name__}: {error}"))
