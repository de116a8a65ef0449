"""Accelerator time lost to waiting, split by what each step's slowest accelerator waited for.

All accelerators of a step wait for the slowest one, so its wait and computation are the step's length, and what it
waited for is what the whole step lost time to (docs/metrics.md, section 5). AU over counted steps is of the kept steps
only: those left when each block of steps loses its first and last ones.

Why accelerators waited: workers were reading, computing or waiting for a core, or batches were not started or taken.
What a worker did not spend on a core (`cpu_ns`) or waiting for one (`cpu_wait_ns`), it was blocked: in reads, or in the
sleep of an emulated preprocessing (`preprocesses`). `preprocess_cpu_ns` is the part of `cpu_ns` used up on purpose.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.au import au_percent
from dlemu.metrics.rates import Floats, Intervals
from dlemu.metrics.rows import Rows, StepTable, Whole, began_ns, cached, in_order, is_any, steps_of, sum_of

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
    total_ns: Whole
    lost_ns: Whole
    """wait + sync of all accelerators; `total_ns` - `lost_ns` is computation."""
    uneven_ns: Whole
    """The part of `lost_ns` that would remain with no waits for data: computation times (random draws) differ."""
    parts_ns: NDArray[np.float64]
    """The rest of `lost_ns`, split by `PARTS`, shape (steps, 4)."""


@cached
def account_of(table: StepTable) -> Account:
    """Combine the rows of all ranks into steps, in the order of epochs, blocks and steps.

    A step's critical row is the one with the least sync; of equal ones, the longest wait. What is lost is split in
    proportion to its wait's parts; without a wait it is the all-reduce's: hand-over.
    """
    steps, compute, wait, sync = steps_of(table), table["compute_ns"], table["wait_ns"], table["sync_ns"]
    computed, lost = steps.sum(compute), steps.sum(wait + sync)
    late = table[steps.first(sync, -wait)]
    uneven = np.minimum(steps.maximum(compute) * steps.sum(1) - computed, lost)
    waited = wait_parts(late)
    whole = waited.sum(axis=-1, keepdims=True)
    shares = np.where(whole > 0, waited / np.maximum(whole, 1), [0.0, 0.0, 0.0, 1.0])
    return Account(late, computed + lost, lost, uneven, shares * (lost - uneven)[:, np.newaxis])


def wait_parts(rows: Rows) -> Whole:
    """Return each row's wait split by `PARTS`, in ns, shape (rows, 4).

    Hand-over: after `finished_ns`, or before the host requested a batch not started; queueing: the rest before
    `started_ns`; reading: the share of `read_ns` in the rest; decoding: what remains.
    """
    wait, free = rows["wait_ns"], rows["free_ns"]
    requested, started, finished = (rows[name] - free for name in ("asked_ns", "started_ns", "finished_ns"))
    after = np.clip(wait - finished, 0, wait)
    before = wait - after
    queued = np.clip(started, 0, before)
    unrequested = np.clip(np.minimum(requested, started), 0, queued)
    working = before - queued
    took = np.maximum(finished - started, 1)
    reading = np.rint(working * np.clip(rows["read_ns"] / took, 0, 1)).astype(np.int64)
    parts: Whole = np.stack([reading, working - reading, queued - unrequested, after + unrequested], axis=-1)
    return parts


def loss_percent(rows: Rows, kept: Rows) -> Loss:
    """Return the loss of all rows, in % of all accelerators' time; what rows outside `kept` lost is `first_step`."""
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


def total_ns(rows: Rows) -> int:
    """Return the time of all accelerators in these rows: wait + computation + sync."""
    return sum(sum_of(rows, name) for name in ("wait_ns", "compute_ns", "sync_ns"))


BUSY_WORKERS = 0.8
"""Workers count as busy, so that a batch not started yet waits for them, from this share of the time on."""


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
    """Mean number of workers blocked in reads at a time, while accelerators waited."""
    call_ms: float
    """Mean time of a read call; 0 where the loader does not count its calls (TensorFlow's own reader)."""
    call_bytes: float
    """Mean bytes of a read call; 0 where unknown."""
    app_mb_per_second: float
    wanted_mb_per_second: float
    """Rate that accelerators that never wait consume; infinite without computation."""
    burns: bool = False
    """Emulated preprocessing used CPU time instead of sleeping."""
    late_share: float = 0.0
    """Share of the ranks' time lost by waking too late from the emulated computation."""


class WorkerTime(NamedTuple):
    """How each row's worker spent its time on the batch, ns; as in `Causes`, each of shape (rows,)."""

    storage: Floats
    pause: Floats
    computing: Floats
    starved: Floats


def worker_time(rows: Rows, preprocesses: bool) -> WorkerTime:
    """Return how each row's worker spent its time on the batch."""
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


def took_ns(rows: Rows) -> NDArray[np.int64]:
    """Return how long each batch's worker worked on it."""
    took: NDArray[np.int64] = rows["finished_ns"] - rows["started_ns"]
    return took


def find_causes(rows: Rows, *, preprocesses: bool, workers: int, reads_stall: bool = False) -> Causes:
    """Return the causes of these steps' loss, in percent of all accelerators' time; `workers` of all ranks.

    They add up to their `loss_percent` less `uneven_computation`. `reads_stall`: while all workers read, that delays
    complete batches, too, as nothing is handed over.
    """
    rows = in_order(rows)
    account = account_of(rows)
    all_ns, late = int(account.total_ns.sum()), account.critical
    if not all_ns:
        return Causes()
    reading, decoding, queueing, handed = account.parts_ns.T
    spent = np.stack(worker_time(late, preprocesses), axis=-1)
    shares = spent / np.maximum(spent.sum(axis=-1, keepdims=True), 1e-9)
    shares_of = partial(_busy_workers_shares, rows, late, preprocesses=preprocesses, workers=workers)
    busy_with = shares_of(late["free_ns"], late["started_ns"])
    in_work = (reading + decoding) @ shares + queueing @ busy_with
    queued = float(((1 - busy_with.sum(axis=-1)) * queueing).sum())
    if reads_stall:
        complete = np.maximum(late["free_ns"], late["finished_ns"])
        stalled = shares_of(complete, late["free_ns"] + late["wait_ns"])[:, 0] * handed
        in_work[0] += stalled.sum()
        handed = handed - stalled
    return Causes(*(100.0 / all_ns * lost for lost in (*in_work.tolist(), queued, float(handed.sum()))))


def _busy_workers_shares(
    rows: StepTable, late: StepTable, since: Whole, until: Whole, *, preprocesses: bool, workers: int
) -> NDArray[np.float64]:
    """Return what a rank's workers did while a late batch waited for them, as shares of that time, shape (late, 4)."""
    shares = np.zeros((len(late), 4))
    workers_per_rank = max(1, workers // max(1, len(rows.by_rank)))
    late_rank, lasting = late["rank"], np.flatnonzero(until > since)
    for part in rows.by_rank if len(lasting) else ():
        waiting = lasting[late_rank[lasting] == part["rank"][0]]
        mine = part[took_ns(part) > 0] if len(waiting) else part  # with a worker's start and end
        if not len(waiting) or not len(mine):
            continue
        starts, stops = mine["started_ns"], mine["finished_ns"]
        origin = int(starts.min())
        begins, ends = since[waiting] - origin, until[waiting] - origin
        edges = np.unique(np.concatenate([begins, ends]))
        first, last = np.searchsorted(edges, begins), np.searchsorted(edges, ends)
        batches = Intervals((starts - origin).astype(float), (stops - origin).astype(float), edges.astype(float))
        worked = np.zeros((len(waiting), 4))
        for kind, spent in enumerate(worker_time(mine, preprocesses)):
            sums = batches.cumulative(spent)
            worked[:, kind] = sums[last] - sums[first]
        busy = worked.sum(axis=-1)
        is_busy = busy >= BUSY_WORKERS * workers_per_rank * (ends - begins)
        shares[waiting] = np.where(is_busy[:, np.newaxis], worked / np.maximum(busy, 1e-9)[:, np.newaxis], 0.0)
    return shares


def work_of(rows: Rows, *, preprocesses: bool) -> Work:
    """Return how the workers of all ranks spent the time of these steps."""
    rows = in_order(rows)
    ranks = max(1, len(rows.by_rank))
    compute_ns = float(sum_of(rows, "compute_ns")) / ranks
    elapsed_ns = max(1.0, compute_ns + float(sum(sum_of(rows, name) for name in ("wait_ns", "sync_ns"))) / ranks)
    spent = worker_time(rows, preprocesses)
    worked_ns = sum(float(kind.sum()) for kind in spent)
    late = rows["slept_ns"] - rows["free_ns"] - rows["wait_ns"] - rows["compute_ns"]
    late_ns = float(np.maximum(late, 0).sum()) / ranks
    calls, app_bytes = sum_of(rows, "read_calls"), sum_of(rows, "app_bytes")
    return Work(
        starved_share=float(spent.starved.sum()) / max(worked_ns, 1.0),
        cpu_known=is_any(rows, "cpu_ns"),
        readers=_readers_while_waiting(rows, spent.storage),
        call_ms=float(sum_of(rows, "read_ns")) / calls / 1e6 if calls else 0.0,
        call_bytes=app_bytes / calls if calls else 0.0,
        app_mb_per_second=app_bytes * 1e3 / elapsed_ns,
        wanted_mb_per_second=app_bytes * 1e3 / compute_ns if compute_ns else np.inf,
        burns=is_any(rows, "preprocess_cpu_ns"),
        late_share=late_ns / (late_ns + elapsed_ns),
    )


@cached
def waits_of(rows: StepTable) -> tuple[Whole, Whole]:
    """Return begin and end of each step's longest wait, for steps with one, by the clock of the first rank."""
    steps = steps_of(rows)
    longest, free = steps.maximum(rows["wait_ns"]), rows["free_ns"][steps.first()]
    return free[longest > 0], (free + longest)[longest > 0]


def mean_ready_behind(rows: Rows) -> float:
    """Return how many later batches were complete when a rank's wait for a batch ended; mean weighted by the waits."""
    behind, waited = 0.0, sum_of(rows, "wait_ns")
    for own in in_order(rows).by_rank_and_epoch:
        ready, finished, wait = own["ready_ns"], own["finished_ns"], own["wait_ns"]
        late = np.flatnonzero(wait > 0)
        for ahead in range(1, _MAX_AHEAD + 1):
            followed = late[late < len(wait) - ahead]
            behind += float(wait[followed][finished[followed + ahead] < ready[followed]].sum())
    return behind / waited if waited else 0.0


_MAX_AHEAD = 64  # each is a pass over the rows; deeper queues are rare
"""Batches after a late one that `mean_ready_behind` examines."""


def _readers_while_waiting(rows: StepTable, reading_ns: Floats) -> float:
    """Return how many workers of all ranks were blocked in reads at a time, on average while accelerators waited.

    `reading_ns`: how long each row's worker was; 0 is returned where no accelerator waited.
    """
    begins, ends = waits_of(rows)
    waited_ns = float((ends - begins).sum())
    if not waited_ns:
        return 0.0
    began = began_ns(rows)
    offset = began - began[0] + begins[0]  # `begins` are by the clock of the first rank
    edges = np.maximum.accumulate(np.stack([begins, ends], axis=1).ravel() - begins[0]).astype(float)
    waited = np.cumsum(np.stack([np.zeros(len(begins)), ends - begins], axis=1).ravel())
    took = took_ns(rows)
    fetched = took > 0
    began, over = (np.interp((rows[name] - offset)[fetched], edges, waited) for name in ("started_ns", "finished_ns"))
    return float(((over - began) / took[fetched] * reading_ns[fetched]).sum()) / waited_ns
