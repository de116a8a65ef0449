"""Accelerator time lost to waiting, split by the reasons for which each step's slowest accelerator waited.

The slowest ("critical") accelerator of a step makes all others wait. So its wait and computation are the duration of
the step, and the parts of its wait explain the loss of all (docs/metrics.md, section 5). Its stamps, in order:

    free_ns       asked_ns      started_ns                  finished_ns    free_ns + wait_ns
       |--hand-over--|--queueing---|--reading and decoding------|--hand-over---|--computation--> sync
       |<---------------------------- wait_ns ---------------------------------|

`free_ns`: the previous step is over on all accelerators; `asked_ns`: the host requests the batch; `started_ns`,
`finished_ns`: a worker begins and completes it. Of a prefetched batch, only the time after `free_ns` counts.

Between start and finish, a worker is on a core (`cpu_ns`, of which emulated preprocessing burns `preprocess_cpu_ns`),
waits for a core (`cpu_wait_ns`), or is blocked: in reads or, if it `preprocesses`, in a sleep in place of real work.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np

from dlemu.metrics.au import au_percent, total_ns
from dlemu.metrics.rates import Floats, Intervals, time_within
from dlemu.metrics.rows import Ints, Rows, StepTable, as_table, cached, has_nonzero, steps_of, sum_of, training_start_ns

PARTS = ("reading", "decoding", "queueing", "hand_over")
"""Parts of a wait for a batch, in the order of the columns of `StepTimes.parts_ns`; `Loss` explains each."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Accelerator time lost, by reason, in % of the time of all accelerators."""

    first_step: float = 0.0
    """Time lost in the steps that the headline AU leaves out, for any reason."""
    reading: float = 0.0
    """A worker was opening or reading files."""
    decoding: float = 0.0
    """A worker was decoding, copying or preprocessing."""
    queueing: float = 0.0
    """No worker had started the batch yet."""
    hand_over: float = 0.0
    """The batch was complete in its worker, but the trainer did not have it yet."""
    uneven_computation: float = 0.0
    """Accelerators waited for another one whose computation time, a random draw, was longer."""


class StepTimes(NamedTuple):
    """The time of each step and what was lost of it, summed over the step's accelerators: arrays of shape (steps,)."""

    critical: StepTable
    """The row of the accelerator that finished the step last, shape (steps,)."""
    total_ns: Ints
    lost_ns: Ints
    """wait + sync of all accelerators; `total_ns` - `lost_ns` is computation."""
    uneven_ns: Ints
    """The part of `lost_ns` that would remain without waits for data: computation times, drawn at random, differ."""
    parts_ns: Floats
    """The rest of `lost_ns`, split by `PARTS`, shape (steps, 4)."""


@cached
def times_of_steps(table: StepTable) -> StepTimes:
    """Return the times of the steps of all ranks, in the order of epochs, blocks and steps.

    A step's critical row has the least sync and, of several such rows, the longest wait. The step's loss is split in
    proportion to the parts of that wait. Without a wait, the loss is the time of the all-reduce, part of hand-over.
    """
    steps, compute, wait, sync = steps_of(table), table["compute_ns"], table["wait_ns"], table["sync_ns"]
    computed, lost = steps.sum(compute), steps.sum(wait + sync)
    critical = table[steps.argmin(sync, -wait)]
    # Without waits for data, each accelerator would wait only for the one that computes longest.
    uneven = np.minimum(steps.maximum(compute) * steps.row_counts - computed, lost)
    parts = wait_parts(critical)
    wait_of_step = parts.sum(axis=-1, keepdims=True)
    shares = np.where(wait_of_step > 0, parts / np.maximum(wait_of_step, 1), [0.0, 0.0, 0.0, 1.0])
    return StepTimes(critical, computed + lost, lost, uneven, shares * (lost - uneven)[:, np.newaxis])


def wait_parts(rows: Rows) -> Ints:
    """Return each row's wait split by `PARTS`, ns, shape (rows, 4); the module's timeline shows the parts.

    Example: the wait is 10 ns, of which 4 are spent in reads. With the request at 1, the start at 3 and the finish at
    8 ns after `free_ns`, it is 4 ns of reading, 1 of decoding, 2 of queueing, and 1 + 2 of hand-over.
    """
    wait, free = rows["wait_ns"], rows["free_ns"]
    asked, started, finished = (rows[name] - free for name in ("asked_ns", "started_ns", "finished_ns"))
    after_finish = np.clip(wait - finished, 0, wait)
    before_finish = wait - after_finish
    before_start = np.clip(started, 0, before_finish)
    before_request = np.clip(np.minimum(asked, started), 0, before_start)
    working = before_finish - before_start
    read_shares = np.clip(rows["read_ns"] / np.maximum(finished - started, 1), 0, 1)
    reading = np.rint(working * read_shares).astype(np.int64)
    return np.stack([reading, working - reading, before_start - before_request, after_finish + before_request], axis=-1)


def loss_percent(rows: Rows, kept: Rows) -> Loss:
    """Return the loss of all rows by reason; all loss outside `kept`, the rows of the headline AU, is `first_step`."""
    all_ns, steps = total_ns(rows), times_of_steps(as_table(kept))
    if not all_ns:
        return Loss()
    first_step_ns = sum_of(rows, "wait_ns") + sum_of(rows, "sync_ns") - int(steps.lost_ns.sum())
    return Loss(
        first_step=100.0 * first_step_ns / all_ns,
        uneven_computation=100.0 * float(steps.uneven_ns.sum()) / all_ns,
        **dict(zip(PARTS, (100.0 * steps.parts_ns.sum(axis=0) / all_ns).tolist(), strict=True)),
    )


def emulated_percent(kept: Rows) -> float:
    """Return the AU, %, as if waiting for another accelerator's longer computation were computing; NaN for no time."""
    return au_percent(kept) + loss_percent(kept, kept).uneven_computation


class WorkerTime(NamedTuple):
    """How each row's worker spent its time on the batch, ns, shape (rows,); the fields are explained in `Causes`."""

    storage: Floats
    pause: Floats
    computing: Floats
    starved: Floats


def worker_time(rows: Rows, preprocesses: bool) -> WorkerTime:
    """Return how workers spent their time; with `preprocesses`, time blocked outside of reads is preprocessing."""
    fetch = np.maximum(fetch_ns(rows), 0).astype(float)
    read = np.minimum(rows["read_ns"], fetch)
    if not has_nonzero(rows, "cpu_ns"):  # time on a core was not measured: assume it is all time outside of reads
        burned = np.minimum(rows["preprocess_cpu_ns"], fetch - read)
        return WorkerTime(read, burned, fetch - read - burned, np.zeros_like(fetch))
    computing = np.minimum(rows["cpu_ns"], fetch)
    starved = np.minimum(rows["cpu_wait_ns"], fetch - computing)
    blocked = fetch - computing - starved
    slept = np.minimum(blocked, fetch - read) if preprocesses else np.zeros_like(fetch)
    burned = np.minimum(rows["preprocess_cpu_ns"], computing)
    return WorkerTime(blocked - slept, slept + burned, computing - burned, starved)


def fetch_ns(rows: Rows) -> Ints:
    """Return how long each row's worker took to make the batch."""
    return np.asarray(rows["finished_ns"] - rows["started_ns"])


@dataclass(frozen=True)
class Causes:
    """Loss by cause, in points of utilisation (% of all accelerators' time)."""

    storage: float = 0.0
    """Workers were blocked in opening or reading files."""
    pause: float = 0.0
    """Workers were in emulated preprocessing, which sleeps or burns CPU time."""
    computing: float = 0.0
    """Workers were on a core for other work: decoding, copying, checking."""
    starved: float = 0.0
    """Workers waited for a core."""
    queueing: float = 0.0
    """No worker had started the batch, though workers were idle."""
    hand_over: float = 0.0
    """The batch was complete, but the trainer did not have it yet."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


def find_causes(rows: Rows, *, preprocesses: bool, workers: int, reads_stall: bool = False) -> Causes:
    """Return the causes of these steps' loss, in % of all accelerators' time; `workers` is the number on all ranks.

    The causes add up to `loss_percent` of the same steps, less `uneven_computation`. If a batch queues while all
    workers are busy, the cause is what they do; if some are idle, it is the queue. With `reads_stall`, a worker can't
    hand over a batch while it reads, so the storage causes hand-over while all workers are busy with reads.
    """
    table = as_table(rows)
    steps = times_of_steps(table)
    all_ns, critical = int(steps.total_ns.sum()), steps.critical
    if not all_ns:
        return Causes()
    reading, decoding, queueing, hand_over = steps.parts_ns.T
    free, ranks = critical["free_ns"], critical["rank"]
    spent = np.stack(worker_time(critical, preprocesses), axis=-1)
    fetch_shares = spent / np.maximum(spent.sum(axis=-1, keepdims=True), 1e-9)
    queue_shares = _busy_workers_shares(table, ranks, free, critical["started_ns"], preprocesses, workers)
    idle_queue = (1 - queue_shares.sum(axis=-1)) * queueing
    stalled = np.zeros_like(hand_over)
    if reads_stall:
        complete, wait_ends = np.maximum(free, critical["finished_ns"]), free + critical["wait_ns"]
        hand_over_shares = _busy_workers_shares(table, ranks, complete, wait_ends, preprocesses, workers)
        stalled = WorkerTime(*hand_over_shares.T).storage * hand_over
    storage, pause, computing, starved = (reading + decoding) @ fetch_shares + queueing @ queue_shares
    lost_ns = [storage + stalled.sum(), pause, computing, starved, idle_queue.sum(), (hand_over - stalled).sum()]
    return Causes(*(100.0 / all_ns * np.array(lost_ns)).tolist())


def _busy_workers_shares(
    rows: StepTable, span_ranks: Ints, begins_ns: Ints, ends_ns: Ints, preprocesses: bool, workers: int
) -> Floats:
    """Return how the workers of a rank spent each span of time, as shares of their work, shape (spans, 4).

    The columns are the fields of `WorkerTime`. The shares of a span add up to 1; or they are 0 if the workers worked
    for less than 80 % of the span, because a batch does not wait for workers of which some are idle.
    """
    shares = np.zeros((len(span_ranks), 4))
    workers_per_rank = max(1, workers // max(1, len(rows.by_rank)))
    nonempty = np.flatnonzero(ends_ns > begins_ns)
    for rank_rows in rows.by_rank:
        spans = nonempty[span_ranks[nonempty] == rank_rows["rank"][0]]
        batches = rank_rows[fetch_ns(rank_rows) > 0]
        if not len(spans) or not len(batches):
            continue
        begins, ends = begins_ns[spans], ends_ns[spans]
        # The work in a span is the cumulative work at its end minus that at its beginning.
        moments = np.unique(np.concatenate([begins, ends]))
        first, last = np.searchsorted(moments, begins), np.searchsorted(moments, ends)
        intervals = Intervals(batches["started_ns"], batches["finished_ns"], moments)
        cumulative = [intervals.cumulative(spent) for spent in worker_time(batches, preprocesses)]
        worked = np.stack([work[last] - work[first] for work in cumulative], axis=-1)
        total = worked.sum(axis=-1, keepdims=True)
        is_busy = total >= 0.8 * workers_per_rank * (ends - begins)[:, np.newaxis]
        shares[spans] = np.where(is_busy, worked / np.maximum(total, 1e-9), 0.0)
    return shares


@dataclass(frozen=True, kw_only=True)
class Work:
    """How the workers of all ranks spent their time in some steps, and at what rates they read."""

    starved_share: float
    """Share of the workers' time on batches in which they waited for a core."""
    cpu_known: bool
    """The workers' time on a core was measured."""
    readers: float
    """Mean number of workers blocked in reads while accelerators waited; 0 if none waited."""
    call_ms: float
    """Mean time of a read call; 0 if the loader does not count its calls (TensorFlow's own reader)."""
    call_bytes: float
    """Mean bytes of a read call; 0 if unknown."""
    app_mb_per_second: float
    wanted_mb_per_second: float
    """Rate of accelerators that never wait; infinite without computation."""
    burns: bool = False
    """Emulated preprocessing burned CPU time instead of sleeping."""
    oversleep_share: float = 0.0
    """Share of the ranks' time lost by waking too late from the emulated computation."""


def work_of(rows: Rows, *, preprocesses: bool) -> Work:
    """Return how the workers of all ranks spent the time of these steps."""
    rows = as_table(rows)
    ranks = max(1, len(rows.by_rank))
    compute_ns, elapsed_ns = sum_of(rows, "compute_ns") / ranks, max(1.0, total_ns(rows) / ranks)
    spent = worker_time(rows, preprocesses)
    worked_ns = sum(float(part.sum()) for part in spent)
    overslept = rows["slept_ns"] - rows["free_ns"] - rows["wait_ns"] - rows["compute_ns"]
    overslept_ns = float(np.maximum(overslept, 0).sum()) / ranks
    calls, app_bytes = sum_of(rows, "read_calls"), sum_of(rows, "app_bytes")
    return Work(
        starved_share=float(spent.starved.sum()) / max(worked_ns, 1.0),
        cpu_known=has_nonzero(rows, "cpu_ns"),
        readers=_readers_while_waiting(rows, spent.storage),
        call_ms=sum_of(rows, "read_ns") / calls / 1e6 if calls else 0.0,
        call_bytes=app_bytes / calls if calls else 0.0,
        app_mb_per_second=app_bytes * 1e3 / elapsed_ns,
        wanted_mb_per_second=app_bytes * 1e3 / compute_ns if compute_ns else np.inf,
        burns=has_nonzero(rows, "preprocess_cpu_ns"),
        oversleep_share=overslept_ns / (overslept_ns + elapsed_ns),
    )


def _readers_while_waiting(rows: StepTable, reading_ns: Floats) -> float:
    """Return `Work.readers`; `reading_ns` is the time that each row's worker was blocked in reads."""
    begins, ends = waits_of(rows)
    waited_ns = float((ends - begins).sum())
    if not waited_ns:
        return 0.0
    origin, fetch = training_start_ns(rows), fetch_ns(rows)
    is_fetched = fetch > 0
    # Waits are on the clock of the first rank: shift the stamps of the others to it.
    stamps = ((rows[name] - origin + origin[0])[is_fetched] for name in ("started_ns", "finished_ns"))
    at_start, at_finish = (time_within(begins, ends, moments) for moments in stamps)
    return float(((at_finish - at_start) / fetch[is_fetched] * reading_ns[is_fetched]).sum()) / waited_ns


@cached
def waits_of(rows: StepTable) -> tuple[Ints, Ints]:
    """Return begin and end of the longest wait of each step with a wait, by the clock of the first rank, ns."""
    steps = steps_of(rows)
    longest, free = steps.maximum(rows["wait_ns"]), rows["free_ns"][steps.argmin(rows["rank"])]
    return free[longest > 0], (free + longest)[longest > 0]


def mean_ready_behind(rows: Rows) -> float:
    """Return the mean number of later batches that were complete when a wait for a batch ended, weighted by waits."""
    weighted_batches, waited_ns = 0.0, sum_of(rows, "wait_ns")
    for rank_rows in as_table(rows).by_rank_and_epoch:
        ready, finished, wait = rank_rows["ready_ns"], rank_rows["finished_ns"], rank_rows["wait_ns"]
        waits = np.flatnonzero(wait > 0)
        for ahead in range(1, 65):  # deeper queues are rare, and each batch ahead takes a pass over the rows
            has_later = waits[waits < len(wait) - ahead]
            is_ready = finished[has_later + ahead] < ready[has_later]
            weighted_batches += float(wait[has_later][is_ready].sum())
    return weighted_batches / waited_ns if waited_ns else 0.0
