"""Accelerator time lost to waiting, split by what each step's slowest accelerator waited for.

The slowest ("critical") accelerator of a step makes all others wait, so its wait and computation are the step's length,
and what it waited for explains the whole step's loss (docs/metrics.md, section 5). Its stamps, in order:

    free_ns       asked_ns      started_ns                  finished_ns    free_ns + wait_ns
       |--hand-over--|--queueing---|--reading and decoding------|--hand-over---|--computation--> sync
       |<---------------------------- wait_ns ---------------------------------|

`free_ns`: the step before is over on all accelerators; `asked_ns`: the host requests the batch; `started_ns`,
`finished_ns`: a worker begins and completes it. Of a batch that was prefetched, only what lies after `free_ns` counts.

Between start and finish a worker is on a core (`cpu_ns`, of which emulated preprocessing burns `preprocess_cpu_ns`),
waits for a core (`cpu_wait_ns`), or is blocked: in reads or, if it `preprocesses`, in the sleep that emulates that.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np

from dlemu.metrics.au import au_percent, total_ns
from dlemu.metrics.rates import Floats, Intervals, time_within
from dlemu.metrics.rows import Ints, Rows, StepTable, began_ns, cached, in_order, is_any, steps_of, sum_of

PARTS = ("reading", "decoding", "queueing", "hand_over")
"""What delays a batch, in the order of the columns of `Account.parts_ns`; each is explained in `Loss`."""


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


class Account(NamedTuple):
    """The time of steps: arrays with one entry per step, summed over its accelerators."""

    critical: StepTable
    """The row of the accelerator that finished the step last, shape (steps,)."""
    total_ns: Ints
    lost_ns: Ints
    """wait + sync of all accelerators; `total_ns` - `lost_ns` is computation."""
    uneven_ns: Ints
    """The part of `lost_ns` that would remain with no waits for data: computation times (random draws) differ."""
    parts_ns: Floats
    """The rest of `lost_ns`, split by `PARTS`, shape (steps, 4)."""


@cached
def account_of(table: StepTable) -> Account:
    """Combine the rows of all ranks into steps, in the order of epochs, blocks and steps.

    A step's critical row has the least sync and, of several such rows, the longest wait. The step's loss is split in
    proportion to the parts of that wait. Where the critical row has no wait, the loss is the all-reduce's: hand-over.
    """
    steps, compute, wait, sync = steps_of(table), table["compute_ns"], table["wait_ns"], table["sync_ns"]
    computed, lost = steps.sum(compute), steps.sum(wait + sync)
    critical = table[steps.first(sync, -wait)]
    uneven = np.minimum(steps.maximum(compute) * steps.sum(1) - computed, lost)
    waited = wait_parts(critical)
    total = waited.sum(axis=-1, keepdims=True)
    shares = np.where(total > 0, waited / np.maximum(total, 1), [0.0, 0.0, 0.0, 1.0])
    return Account(critical, computed + lost, lost, uneven, shares * (lost - uneven)[:, np.newaxis])


def wait_parts(rows: Rows) -> Ints:
    """Return each row's wait split by `PARTS`, in ns, shape (rows, 4); the module's timeline shows the parts.

    A wait of 10 with asked at 1, started at 3 and finished at 8 (all since `free_ns`), and 4 ns of reading:
    4 reading, 1 decoding, 2 queueing, 1 + 2 hand-over.
    """
    wait, free = rows["wait_ns"], rows["free_ns"]
    asked, started, finished = (rows[name] - free for name in ("asked_ns", "started_ns", "finished_ns"))
    after = np.clip(wait - finished, 0, wait)
    before = wait - after
    not_started = np.clip(started, 0, before)
    not_asked = np.clip(np.minimum(asked, started), 0, not_started)
    working = before - not_started
    took = np.maximum(finished - started, 1)
    reading = np.rint(working * np.clip(rows["read_ns"] / took, 0, 1)).astype(np.int64)
    return np.stack([reading, working - reading, not_started - not_asked, after + not_asked], axis=-1)


def loss_percent(rows: Rows, kept: Rows) -> Loss:
    """Return all rows' loss, in % of all accelerators' time; `first_step` is the loss outside `kept` (`kept_rows`)."""
    all_ns, account = total_ns(rows), account_of(kept)
    if not all_ns:
        return Loss()
    first_step_ns = sum_of(rows, "wait_ns") + sum_of(rows, "sync_ns") - int(account.lost_ns.sum())
    return Loss(
        first_step=100.0 * first_step_ns / all_ns,
        uneven_computation=100.0 * float(account.uneven_ns.sum()) / all_ns,
        **dict(zip(PARTS, (100.0 * account.parts_ns.sum(axis=0) / all_ns).tolist(), strict=True)),
    )


def emulated_percent(kept: Rows) -> float:
    """Return the AU of the kept steps if waits for uneven computation counted as computation; NaN for no time."""
    return au_percent(kept) + loss_percent(kept, kept).uneven_computation


@dataclass(frozen=True)
class Causes:
    """Loss by cause, in points of utilisation (% of all accelerators' time)."""

    storage: float = 0.0
    """Workers were blocked opening or reading files."""
    pause: float = 0.0
    """Workers slept or computed in emulated preprocessing."""
    computing: float = 0.0
    """Workers ran on a core: decoding, copying, checking."""
    starved: float = 0.0
    """Workers waited for a core."""
    queueing: float = 0.0
    """No worker had started the batch, though workers were free."""
    hand_over: float = 0.0
    """The batch was complete, but the trainer did not have it yet."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


@dataclass(frozen=True, kw_only=True)
class Work:
    """How the workers of all ranks spent the time of the steps examined."""

    starved_share: float
    """Share of the workers' time on batches in which they waited for a core."""
    cpu_known: bool
    """The workers' time on a core was measured."""
    readers: float
    """Mean number of workers blocked in reads at a time, while accelerators waited; 0 where none waited."""
    call_ms: float
    """Mean time of a read call; 0 where the loader does not count its calls (TensorFlow's own reader)."""
    call_bytes: float
    """Mean bytes of a read call; 0 where unknown."""
    app_mb_per_second: float
    wanted_mb_per_second: float
    """Rate that accelerators that never wait consume; infinite without computation."""
    burns: bool = False
    """Emulated preprocessing used CPU time instead of sleeping."""
    oversleep_share: float = 0.0
    """Share of the ranks' time lost by waking too late from the emulated computation."""


class WorkerTime(NamedTuple):
    """How each row's worker spent its time on the batch, ns; as in `Causes`, each of shape (rows,)."""

    storage: Floats
    pause: Floats
    computing: Floats
    starved: Floats


def worker_time(rows: Rows, preprocesses: bool) -> WorkerTime:
    took = np.maximum(took_ns(rows), 0).astype(float)
    read = np.minimum(rows["read_ns"], took)
    if not is_any(rows, "cpu_ns"):  # a worker's time on a core was not measured
        burned = np.minimum(rows["preprocess_cpu_ns"], took - read)
        return WorkerTime(read, burned, took - read - burned, np.zeros_like(took))
    computing = np.minimum(rows["cpu_ns"], took)
    starved = np.minimum(rows["cpu_wait_ns"], took - computing)
    blocked = took - computing - starved
    pause = np.minimum(blocked, took - read) if preprocesses else np.zeros_like(took)
    burned = np.minimum(rows["preprocess_cpu_ns"], computing)
    return WorkerTime(blocked - pause, pause + burned, computing - burned, starved)


def took_ns(rows: Rows) -> Ints:
    return np.asarray(rows["finished_ns"] - rows["started_ns"])


def find_causes(rows: Rows, *, preprocesses: bool, workers: int, reads_stall: bool = False) -> Causes:
    """Return the causes of these steps' loss, in percent of all accelerators' time; `workers` of all ranks.

    The causes add up to `loss_percent` of the same steps without `uneven_computation`. `reads_stall`: a worker that
    reads can't hand over batches either, so hand-over counts as reading while all workers read.
    """
    table = in_order(rows)
    account = account_of(table)
    all_ns, critical = int(account.total_ns.sum()), account.critical
    if not all_ns:
        return Causes()
    reading, decoding, queueing, handed_over = account.parts_ns.T
    spent = np.stack(worker_time(critical, preprocesses), axis=-1)
    shares = spent / np.maximum(spent.sum(axis=-1, keepdims=True), 1e-9)

    def workers_did(begins_ns: Ints, ends_ns: Ints) -> Floats:
        return _busy_workers_shares(table, critical["rank"], begins_ns, ends_ns, preprocesses, workers)

    before_start = workers_did(critical["free_ns"], critical["started_ns"])
    worked = (reading + decoding) @ shares + queueing @ before_start
    queued = float(((1 - before_start.sum(axis=-1)) * queueing).sum())
    if reads_stall:
        complete_ns = np.maximum(critical["free_ns"], critical["finished_ns"])
        stalled = workers_did(complete_ns, critical["free_ns"] + critical["wait_ns"])[:, 0] * handed_over
        worked[0] += stalled.sum()
        handed_over = handed_over - stalled
    lost = np.array([*worked, queued, handed_over.sum()])  # in the order of `Causes`
    return Causes(*(100.0 / all_ns * lost).tolist())


def _busy_workers_shares(
    rows: StepTable, span_ranks: Ints, begins_ns: Ints, ends_ns: Ints, preprocesses: bool, workers: int
) -> Floats:
    """Return what a rank's workers did in each span of time, as shares of their work in it, shape (spans, 4).

    Columns are those of `WorkerTime`. All are 0 if the workers worked for less than 80 % of the span: then some were
    idle, and a batch that no worker had started did not wait for them.
    """
    shares = np.zeros((len(span_ranks), 4))
    workers_per_rank = max(1, workers // max(1, len(rows.by_rank)))
    lasting = np.flatnonzero(ends_ns > begins_ns)
    for own in rows.by_rank:
        spans, batches = lasting[span_ranks[lasting] == own["rank"][0]], own[took_ns(own) > 0]
        if not len(spans) or not len(batches):
            continue
        begins, ends = begins_ns[spans], ends_ns[spans]
        # Work done until each begin and end of a span: the difference between the two was done in the span.
        moments = np.unique(np.concatenate([begins, ends]))
        first, last = np.searchsorted(moments, begins), np.searchsorted(moments, ends)
        intervals = Intervals(batches["started_ns"], batches["finished_ns"], moments)
        done = [intervals.cumulative(spent) for spent in worker_time(batches, preprocesses)]
        worked = np.stack([until[last] - until[first] for until in done], axis=-1)
        busy = worked.sum(axis=-1)
        is_busy = busy >= 0.8 * workers_per_rank * (ends - begins)
        shares[spans] = np.where(is_busy[:, np.newaxis], worked / np.maximum(busy, 1e-9)[:, np.newaxis], 0.0)
    return shares


def work_of(rows: Rows, *, preprocesses: bool) -> Work:
    """Return how the workers of all ranks spent the time of these steps."""
    rows = in_order(rows)
    ranks = max(1, len(rows.by_rank))
    compute_ns, elapsed_ns = sum_of(rows, "compute_ns") / ranks, max(1.0, total_ns(rows) / ranks)
    spent = worker_time(rows, preprocesses)
    worked_ns = sum(float(part.sum()) for part in spent)
    overslept = rows["slept_ns"] - rows["free_ns"] - rows["wait_ns"] - rows["compute_ns"]
    overslept_ns = float(np.maximum(overslept, 0).sum()) / ranks
    calls, app_bytes = sum_of(rows, "read_calls"), sum_of(rows, "app_bytes")
    return Work(
        starved_share=float(spent.starved.sum()) / max(worked_ns, 1.0),
        cpu_known=is_any(rows, "cpu_ns"),
        readers=_readers_while_waiting(rows, spent.storage),
        call_ms=sum_of(rows, "read_ns") / calls / 1e6 if calls else 0.0,
        call_bytes=app_bytes / calls if calls else 0.0,
        app_mb_per_second=app_bytes * 1e3 / elapsed_ns,
        wanted_mb_per_second=app_bytes * 1e3 / compute_ns if compute_ns else np.inf,
        burns=is_any(rows, "preprocess_cpu_ns"),
        oversleep_share=overslept_ns / (overslept_ns + elapsed_ns),
    )


@cached
def waits_of(rows: StepTable) -> tuple[Ints, Ints]:
    """Return begin and end of each step's longest wait, for steps with one, by the clock of the first rank."""
    steps = steps_of(rows)
    longest, free = steps.maximum(rows["wait_ns"]), rows["free_ns"][steps.first()]
    return free[longest > 0], (free + longest)[longest > 0]


def mean_ready_behind(rows: Rows) -> float:
    """Return how many later batches were complete when a rank's wait for a batch ended; mean weighted by the waits."""
    weighted_batches, waited_ns = 0.0, sum_of(rows, "wait_ns")
    for own in in_order(rows).by_rank_and_epoch:
        ready, finished, wait = own["ready_ns"], own["finished_ns"], own["wait_ns"]
        waits = np.flatnonzero(wait > 0)
        for ahead in range(1, 65):  # each is a pass over the rows; deeper queues are rare
            followed = waits[waits < len(wait) - ahead]
            weighted_batches += float(wait[followed][finished[followed + ahead] < ready[followed]].sum())
    return weighted_batches / waited_ns if waited_ns else 0.0


def _readers_while_waiting(rows: StepTable, reading_ns: Floats) -> float:
    """Return `Work.readers`; `reading_ns` is how long each row's worker was blocked in reads."""
    begins, ends = waits_of(rows)
    waited_ns = float((ends - begins).sum())
    if not waited_ns:
        return 0.0
    began, took = began_ns(rows), took_ns(rows)
    fetched = took > 0
    stamps = ((rows[name] - began + began[0])[fetched] for name in ("started_ns", "finished_ns"))  # by its clock
    at_start, at_finish = (time_within(begins, ends, moments) for moments in stamps)
    return float(((at_finish - at_start) / took[fetched] * reading_ns[fetched]).sum()) / waited_ns
