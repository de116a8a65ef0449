"""What stood behind the waiting: blocked in reads, computing, starved of a core, not begun, or late in the hand-over.

The step log reports for each batch how long its worker had a core (`cpu_ns`) and wanted one (`cpu_wait_ns`); what is
left of the time from `started_ns` to `finished_ns` the worker was blocked, and all it can be blocked in is reading and
the sleep of an emulated preprocessing. One that burns CPU has an account of its own (`preprocess_cpu_ns`), as part of
the time with a core; `preprocesses` says that it slept.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.loss import PARTS, by_step
from dlemu.metrics.over_time import Floats, Intervals
from dlemu.metrics.rows import (
    Columns,
    Rows,
    StepTable,
    chunks,
    in_order,
    is_any,
    raise_at,
    since_free,
    steps_of,
    sum_of,
)

BUSY_WORKERS = 0.8
"""From this share of the time that a batch waits in the queue its rank's workers count as busy: it waits for them."""


@dataclass(frozen=True)
class Causes:
    """Points of utilisation (or any weight) by cause."""

    storage: float = 0.0
    """Workers were blocked in opening and reading files."""
    pause: float = 0.0
    """Workers slept or computed in emulated preprocessing."""
    computing: float = 0.0
    """Workers had a core: decoding, copying, checking."""
    starved: float = 0.0
    """Workers wanted a core and had none."""
    queueing: float = 0.0
    """The batch was not begun, and workers had time."""
    hand_over: float = 0.0
    """The batch was ready and not in the trainer's hands."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))

    def scaled(self, factor: float) -> Causes:
        """Return all of them times a factor."""
        return Causes(*(value * factor for value in astuple(self)))


@dataclass(frozen=True, kw_only=True)
class Work:
    """How the workers of all ranks spent the time of some steps."""

    elapsed_seconds: float
    starved_share: float
    """Share of the time of making batches in which they wanted a core and had none."""
    cpu_known: bool
    readers: float
    """Mean number of workers that were blocked in reads at a time, while accelerators waited."""
    call_ms: float
    """Mean time of a read call; 0 where the loader does not count its calls (TensorFlow's own reader)."""
    call_bytes: float
    """What a call reads; 0 where that is not known."""
    app_mb_per_second: float
    wanted_mb_per_second: float
    """What the accelerators would take if they never waited; infinite when nothing computes."""
    burns: bool = False
    """Emulated preprocessing took CPU time: it did not sleep."""
    late_share: float = 0.0
    """Share of the ranks' time by which they woke too late from their steps."""


class WorkerTime(NamedTuple):
    """What the workers of some rows did with their time, ns; all have shape (rows,)."""

    storage: Floats
    pause: Floats
    computing: Floats
    starved: Floats


def worker_time(rows: Columns, preprocesses: bool, *, cpu_known: bool | None = None) -> WorkerTime:
    """Return for each row what its worker did with its time, in the order of `Causes`.

    `cpu_known` is what `cpu_is_known` says of all rows where these are some of them.
    """
    took = np.maximum(took_ns(rows), 0).astype(float)
    read = np.minimum(rows["read_ns"], took)
    if not (cpu_is_known(rows) if cpu_known is None else cpu_known):
        burned = np.minimum(rows["preprocess_cpu_ns"], took - read)
        return WorkerTime(read, burned, took - read - burned, np.zeros_like(took))
    computing = np.minimum(rows["cpu_ns"], took)
    starved = np.minimum(rows["cpu_wait_ns"], took - computing)
    blocked = took - computing - starved
    pause = np.minimum(blocked, took - read) if preprocesses else np.zeros_like(took)
    burned = np.minimum(rows["preprocess_cpu_ns"], computing)
    return WorkerTime(blocked - pause, pause + burned, computing - burned, starved)


def took_ns(rows: Columns) -> NDArray[np.int64]:
    """Return how long each batch took its worker."""
    return since_free(rows, "finished_ns") - since_free(rows, "started_ns")


def cpu_is_known(rows: Columns) -> bool:
    """Return whether the workers' time on a core was measured."""
    return is_any(rows, "cpu_ns")


def find_causes(rows: Rows, *, preprocesses: bool, workers: int) -> Causes:
    """Return the causes of the loss of some steps, in percent of all accelerators' time.

    They add up to what `loss_percent` of the same rows says but for longer computations. `workers` are those of all
    ranks; what waited in the queue is theirs where they were always busy.
    """
    rows = in_order(rows)
    steps = by_step(rows)
    if not len(rows) or not steps.total_ns.sum():
        return Causes()
    by_part = dict(zip(PARTS, steps.parts_ns.T, strict=True))
    lost_in_work = by_part["reading"] + by_part["decoding"]
    spent = np.stack(worker_time(steps.critical, preprocesses), axis=-1)
    shares = spent / np.maximum(spent.sum(axis=-1, keepdims=True), 1e-9)
    in_work = (shares * lost_in_work[:, np.newaxis]).sum(axis=0)
    behind = _work_behind(rows, steps.critical, preprocesses=preprocesses, workers=workers)
    in_work += (behind * by_part["queueing"][:, np.newaxis]).sum(axis=0)
    queued = float(((1 - behind.sum(axis=-1)) * by_part["queueing"]).sum())
    storage, pause, computing, starved = in_work.tolist()
    lost = Causes(storage, pause, computing, starved, queued, float(by_part["hand_over"].sum()))
    return lost.scaled(100.0 / int(steps.total_ns.sum()))


def _work_behind(rows: StepTable, late: Columns, *, preprocesses: bool, workers: int) -> NDArray[np.float64]:
    """Return what the workers did for which late batches queued, as shares of that time, shape (late, 4).

    Zeros where workers had time. It is judged at the time of each batch: storage that became slow keeps workers busy
    from then on, whatever they were before.
    """
    shares = np.zeros((len(late), 4))
    own = max(1, workers // max(1, len(rows.by_rank)))
    late_rank, free, started = late["rank"], late["free_ns"], late["started_ns"]
    queued = np.flatnonzero(started > free)
    for part in rows.by_rank if len(queued) else ():
        waiting = queued[late_rank[queued] == part.label("rank")[0]]
        mine = _fetched(part) if len(waiting) else part
        if not len(waiting) or not len(mine):
            continue
        starts, stops = mine["started_ns"], mine["finished_ns"]
        origin = int(starts.min())
        begins, ends = free[waiting] - origin, started[waiting] - origin
        edges = np.unique(np.concatenate([begins, ends]))
        first, last = np.searchsorted(edges, begins), np.searchsorted(edges, ends)
        batches = Intervals((starts - origin).astype(float), (stops - origin).astype(float), edges.astype(float))
        did = np.zeros((len(waiting), 4))
        for kind, spent in enumerate(worker_time(mine, preprocesses)):
            sums = batches.passed(spent)
            did[:, kind] = sums[last] - sums[first]
        busy = did.sum(axis=-1)
        is_busy = busy >= BUSY_WORKERS * own * (ends - begins)
        shares[waiting] = np.where(is_busy[:, np.newaxis], did / np.maximum(busy, 1e-9)[:, np.newaxis], 0.0)
    return shares


def _fetched(rows: StepTable) -> StepTable:
    """Return the rows whose batch took a worker some time."""
    return rows[took_ns(rows) > 0]


def work_of(rows: Rows, *, preprocesses: bool) -> Work:
    """Return how the workers spent the time of some steps."""
    rows = in_order(rows)
    ranks = max(1, len(rows.by_rank))
    compute_ns = float(sum_of(rows, "compute_ns")) / ranks
    elapsed_ns = max(1.0, compute_ns + float(sum(sum_of(rows, name) for name in ("wait_ns", "sync_ns"))) / ranks)
    cpu_known = cpu_is_known(rows)
    spent, late_ns = np.zeros(4), 0.0
    for part in chunks(rows):
        spent += [did.sum() for did in worker_time(part, preprocesses, cpu_known=cpu_known)]
        late_ns += np.maximum(part.since_free("slept_ns") - part["wait_ns"] - part["compute_ns"], 0).sum() / ranks
    calls, app_bytes = sum_of(rows, "read_calls"), sum_of(rows, "app_bytes")
    return Work(
        elapsed_seconds=elapsed_ns / 1e9,
        starved_share=float(spent[3] / max(spent.sum(), 1.0)),
        cpu_known=cpu_known,
        readers=_readers_while_waiting(rows, preprocesses),
        call_ms=float(sum_of(rows, "read_ns")) / calls / 1e6 if calls else 0.0,
        call_bytes=app_bytes / calls if calls else 0.0,
        app_mb_per_second=app_bytes * 1e3 / elapsed_ns,
        wanted_mb_per_second=app_bytes * 1e3 / compute_ns if compute_ns else np.inf,
        burns=sum_of(rows, "preprocess_cpu_ns") > 0,
        late_share=float(late_ns / (late_ns + elapsed_ns)),
    )


def waits_of(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of the longest wait of each step in which one waited, by the clock of the rows' first rank.

    `free_ns` is the same moment on all ranks: their clocks differ, and with them their stamps, not their waits.
    """
    return in_order(rows).once(_waits_of)


def _waits_of(rows: StepTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    steps = steps_of(rows)
    longest, free = np.zeros(steps.count, np.int64), np.zeros(steps.count, np.int64)
    for _, part, place in reversed(steps.parts):  # the first rank's moments stay
        raise_at(longest, place, part["wait_ns"])
        free[place] = part["free_ns"]
    return free[longest > 0], (free + longest)[longest > 0]


def lying_ready(rows: Rows) -> float:
    """Return how many batches lay ready behind the missing one when a rank's wait for it was over; mean by waits."""
    table = in_order(rows)
    behind, waited = 0.0, 0
    for rank in table.by_rank:
        for own in rank.by_epoch:
            ready, finished, wait = own["ready_ns"], own["finished_ns"], own["wait_ns"]
            late = np.flatnonzero(wait > 0)
            for place in range(1, _MOST_AHEAD + 1):
                follows = late[late < len(wait) - place]
                behind += float(wait[follows][finished[follows + place] < ready[follows]].sum())
            waited += int(wait.sum())
    return behind / waited if waited else 0.0


_MOST_AHEAD = 64  # each is a pass over the rows; deeper queues are rare
"""Batches behind a missing one that are looked at."""


def _readers_while_waiting(rows: StepTable, preprocesses: bool) -> float:
    """Return how many workers of all ranks were blocked in reads at a time while accelerators waited; else on average.

    At other times workers have no reason to read: their prefetch queues are full.
    """
    begins, ends = waits_of(rows)
    if not len(begins):
        return 0.0
    cpu_known = any(cpu_is_known(_fetched(part)) for part in chunks(rows))
    # A step is free at the same moment on all ranks: the earliest lays their clocks over each other.
    starts = {int(part.label("rank")[0]): int(part["free_ns"].min()) for part in rows.by_rank}
    origin = int(begins[0])
    edges = np.maximum.accumulate(np.stack([begins - origin, ends - origin], axis=1).ravel()).astype(float)
    waited = np.cumsum(np.stack([np.zeros(len(begins)), ends - begins], axis=1).ravel())
    late = 0.0
    for part in chunks(rows):
        fetched = _fetched(part)
        if not len(fetched):
            continue
        ahead = starts[int(part.label("rank")[0])] - starts[rows.values("rank")[0]] + origin
        began, over = fetched["started_ns"] - ahead, fetched["finished_ns"] - ahead
        shares = (np.interp(over, edges, waited) - np.interp(began, edges, waited)) / (over - began)
        late += float((shares * worker_time(fetched, preprocesses, cpu_known=cpu_known).storage).sum())
    return late / float((ends - begins).sum())
