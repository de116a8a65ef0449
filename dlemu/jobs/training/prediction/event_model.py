"""Discrete-event simulation of one epoch: readers share the storage, and accelerators synchronise after each step.

All active readers share the storage's throughput equally (processor sharing: Kleinrock, Queueing Systems II, 1976,
section 4.4); the total depends on their number. So one number is enough for all reads: `reader_bytes`, the bytes that a
reader active since the start would have got. A read of b bytes that begins when `reader_bytes` is g ends when it is
g + b, whatever begins or ends meanwhile; a heap holds the reads by that value. Decoding shares the cores in the same
way (`core_seconds`).

    At 100 MB/s, A reads 100 MB from 0 s on, and B reads 50 MB from 0.5 s on. Both end at 1.5 s:
    seconds        0      0.5            1.5
    reader_bytes   0      50 MB          100 MB     (A ends at 0 + 100, B at 50 + 50)

Loaders and trainers behave like dlemu's own (`dlemu.jobs.training.loop`): a window limits how many batches are ready
or being made, batches are delivered in order, and the next one is taken off the loader while a step computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from dlemu.metrics.rates import Floats


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """The host's overhead, in seconds."""

    hand_over_seconds: float = 0.0005  # from the completion of a batch in its worker until the trainer has it
    take_seconds: float = 0.0  # from the request for a batch that is ready until the trainer has it: receiving tensors
    between_seconds: float = 0.0  # from the completion of a batch until its worker starts the next one
    epoch_start_seconds: float = 0.005  # from the start of an epoch to its first reads
    step_seconds: float = 0.0005  # from the end of a step on all accelerators until the trainer requests the next batch


@dataclass(frozen=True, eq=False, kw_only=True)
class EpochInput:
    """One epoch of all ranks; arrays have the shape (ranks, steps)."""

    weighted_bytes: Floats  # bytes of each batch x the relative cost of its read (see `Calibration.work`)
    decode_seconds: Floats  # time for which a worker with a core of its own decodes and preprocesses each batch
    sleep_seconds: Floats | None = None  # time for which the worker then sleeps, without a core; None: not at all
    compute_seconds: Floats
    rate: Floats  # bytes/s that 0, 1, ... readers get together, up to all workers of all ranks
    workers: int  # workers per rank; 0: the trainer itself reads each batch when it needs it
    window: int  # maximum number of a rank's batches that are ready or being made, without those that the trainer has
    in_turn: bool  # whether worker k modulo `workers` makes batch k; otherwise any idle worker does
    synchronous: bool  # whether the trainer requests a batch only after the previous step
    cores: float  # cores of all hosts together, shared evenly by the batches that are decoded at the same time
    costs: HostCosts


@dataclass(frozen=True, eq=False)
class EpochTimes:
    """Times of events, in seconds since the epoch's start; shape (ranks, steps), except `free`."""

    free: Floats  # when each step began, and when the last was over: shape (steps + 1,)
    ready: Floats  # when the trainer received the batch
    started: Floats  # when a worker began to read the batch
    read: Floats  # when all bytes of the batch had been read
    finished: Floats  # when the worker had completed the batch


def simulate(epoch: EpochInput) -> EpochTimes:
    """Simulate the epoch, event by event in order of time; return when each batch was read, delivered and used.

    Each batch goes through the closures `queue`, `begin` (its read), `finish` (after reading, decoding and sleeping),
    `request` (by its trainer) and `compute_step`; closures are faster here than methods. Batch k of rank r has the
    index r * steps + k in all lists by batch.
    """
    ranks, steps = epoch.weighted_bytes.shape
    batch_count = ranks * steps
    costs = epoch.costs
    trainer_reads = epoch.workers == 0  # the trainer itself is the only worker
    workers = max(1, epoch.workers)
    requests_early = not (epoch.synchronous or trainer_reads)  # the next batch is requested when a step begins
    window = 1 if trainer_reads else max(workers if epoch.in_turn else 1, epoch.window)
    # Bytes/s of one reader among 0, 1, ... active ones; with 0 bytes/s a read would never end
    reader_rates = [0.0, *(np.maximum(epoch.rate[1:], 1e-3) / np.arange(1, len(epoch.rate))).tolist()]
    weighted_bytes, compute = epoch.weighted_bytes.ravel().tolist(), epoch.compute_seconds.ravel().tolist()
    # A worker is busy until it starts its next batch, so its time between two batches is counted as decoding here, and
    # is no longer a part of the hand-over.
    decode_seconds = epoch.decode_seconds + costs.between_seconds
    decode = decode_seconds.ravel().tolist() if decode_seconds.any() else None
    sleep = None if epoch.sleep_seconds is None else epoch.sleep_seconds.ravel().tolist()
    take_seconds, step_seconds = costs.take_seconds, costs.step_seconds
    hand_over = max(costs.hand_over_seconds - costs.between_seconds, take_seconds)

    # By batch
    ready, started, read, finished = ([0.0] * batch_count for _ in range(4))
    is_complete = bytearray(batch_count)
    # By rank: whether its trainer waits; how many batches were queued for its workers, delivered to it, and used by it
    is_waiting = bytearray(ranks)
    queued, delivered, used = ([0] * ranks for _ in range(3))
    # By lane (one worker with `in_turn`, else all workers of a rank): how many batches are begun, and workers idle
    lanes = workers if epoch.in_turn else 1  # of a rank; batches go to its lanes in turn
    begun, idle = [0] * (ranks * lanes), [workers // lanes] * (ranks * lanes)
    # Three heaps of batches, each by the end of what is under way
    reads: list[tuple[float, int]] = []  # by `reader_bytes` at the end of the read
    decoding: list[tuple[float, int]] = []  # by `core_seconds` at the end of decoding and preprocessing
    events: list[tuple[float, int]] = []  # by the time at which the batch's worker ends its sleep
    # Negative codes in `events`, in place of a batch; a third code, -2 - rank, is that the rank receives a batch
    step_over, all_request = -1, -2 - ranks

    now = costs.epoch_start_seconds
    active = 0  # number of reads under way
    reader_bytes = core_seconds = 0.0  # what one reader, and one decoding worker, would have got since the start
    core_share = 1.0  # of each batch being decoded
    step = 0  # the current step
    not_computing = ranks  # number of ranks that have not begun to compute it
    latest_end = 0.0  # of the ranks that have begun
    free = [0.0] * (steps + 1)

    def begin(batch: int) -> None:
        """Have a worker read a batch."""
        nonlocal active
        started[batch] = now
        active += 1
        heappush(reads, (reader_bytes + weighted_bytes[batch], batch))

    def share_cores() -> float:
        """Return the share of a core, at most 1, that each batch being decoded gets."""
        return min(1.0, epoch.cores / len(decoding)) if decoding else 1.0

    def queue(rank: int, number: int) -> None:
        """Queue a batch for the rank's workers; if one of its lane is idle, it begins the batch."""
        queued[rank] = number + 1
        lane = rank * lanes + number % lanes
        if idle[lane]:
            idle[lane] -= 1
            begun[lane] += 1
            begin(rank * steps + number)

    def finish(batch: int) -> None:
        """Complete a batch: a trainer that waits for it receives it, and its worker begins the next queued one."""
        rank, number = divmod(batch, steps)
        finished[batch] = now
        is_complete[batch] = 1
        if is_waiting[rank] and delivered[rank] == number:
            is_waiting[rank] = 0
            heappush(events, (now + hand_over, -2 - rank))
        lane = rank * lanes + number % lanes
        next_number = begun[lane] * lanes + number % lanes
        if next_number < queued[rank]:
            begun[lane] += 1
            begin(rank * steps + next_number)
        else:
            idle[lane] += 1

    def request(rank: int) -> None:
        """Have the rank receive its next batch as soon as that batch is complete."""
        number = delivered[rank]
        if number >= steps:
            return
        batch = rank * steps + number
        if trainer_reads:
            queue(rank, number)
        if is_complete[batch]:
            heappush(events, (max(now + take_seconds, finished[batch] + hand_over), -2 - rank))
        else:
            is_waiting[rank] = 1

    def compute_step(rank: int) -> None:
        """Start the rank's step on a batch that is ready."""
        nonlocal not_computing, latest_end
        batch = rank * steps + used[rank]
        used[rank] += 1
        end = max(ready[batch], free[step]) + compute[batch]
        if end > latest_end:
            latest_end = end
        not_computing -= 1
        if not_computing == 0:
            heappush(events, (max(now, latest_end), step_over))
        if requests_early:
            request(rank)

    # All workers begin, and each trainer requests its first batch.
    for rank in range(ranks):
        for number in range(0 if trainer_reads else min(window, steps)):
            queue(rank, number)
    for rank in range(ranks):
        request(rank)
    while step < steps:  # each pass handles what comes first: the end of a read or of a decoding, or an event
        reader_rate = reader_rates[active]
        read_end = now + (reads[0][0] - reader_bytes) / reader_rate if active else math.inf
        decode_end = now + (decoding[0][0] - core_seconds) / core_share if decoding else math.inf
        if events and events[0][0] <= read_end and events[0][0] <= decode_end:
            event_time, code = heappop(events)
            if event_time > now:
                reader_bytes += (event_time - now) * reader_rate
                core_seconds += (event_time - now) * core_share
                now = event_time
            if code == step_over:
                step += 1
                free[step] = latest_end
                latest_end, not_computing = 0.0, ranks
                if step_seconds:
                    heappush(events, (now + step_seconds, all_request))
                    continue
                code = all_request
            if code >= 0:  # the index of a batch
                finish(code)
            elif code > all_request:
                rank = -2 - code  # this rank receives its next batch, so its workers may begin another one
                number = delivered[rank]
                ready[rank * steps + number] = now
                delivered[rank] = number + 1
                if number + window < steps and not trainer_reads:
                    queue(rank, number + window)
                if used[rank] == number == step and now >= free[step] + (step_seconds if step else 0.0):
                    compute_step(rank)
            else:  # the step is over: ranks that have their next batch begin the next step
                for rank in range(ranks):
                    if delivered[rank] > step == used[rank]:
                        compute_step(rank)
                    elif not requests_early:
                        request(rank)
            continue
        if decode_end <= read_end:
            reader_bytes += (decode_end - now) * reader_rate
            core_seconds, batch = heappop(decoding)
            now, core_share = decode_end, share_cores()
        else:
            core_seconds += (read_end - now) * core_share
            reader_bytes, batch = heappop(reads)
            now = read[batch] = read_end
            active -= 1
            if decode is not None:
                heappush(decoding, (core_seconds + decode[batch], batch))
                core_share = share_cores()
                continue
        if sleep is None:
            finish(batch)
        else:
            heappush(events, (now + sleep[batch], batch))
    arrays = (np.array(times).reshape(ranks, steps) for times in (ready, started, read, finished))
    return EpochTimes(np.array(free), *arrays)
