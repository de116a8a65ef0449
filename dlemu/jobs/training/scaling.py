"""Trials of other numbers of readers and of larger requests, right after a run that waited for reads.

A rate alone does not tell a slow drive from one that needs more readers, or fewer. So the ranks read further epochs for
`metric.scaling_seconds` each: as in the run, as in each trial, and as in the run again, in case the storage got faster.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

from datagen.errors import DlemuError
from datagen.storage.storage_base import open_storage
from dlemu.config.duration import NO_TIME, is_zero
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import TRAINING, StepRows
from dlemu.loaders.loader_base import BatchMaker
from dlemu.machine.cgroup_limits import host_memory
from dlemu.metrics.au import au_percent
from dlemu.metrics.limit import FEW_REQUESTS, MAX_REQUEST_BYTES, MIN_LOSS_PERCENT, Scaling
from dlemu.metrics.loss import Causes, Work, find_causes, work_of
from dlemu.metrics.rows import Rows, has_nonzero
from dlemu.ranks import Comm

# Factor for more readers, and divisor for fewer: far above MIN_SPEEDUP; a larger one would take more memory and cores
READER_FACTOR = 4
READ_BYTES = 32 << 20  # maximum size of a read of several samples: of larger ones, slow drives complete too few
LARGER_BYTES = 4 << 20  # size of the larger read calls, tried if the run's calls had at most a quarter of that
MEMORY_SHARE = 0.25  # of the available memory; more readers are tried only if their buffers need less
Trial = Literal["more", "fewer", "larger"]  # more readers, fewer readers, larger requests


def try_other_readers(job: TrainingJob, comm: Comm, rows: StepRows) -> Scaling | None:
    """Run the trials that any rank's rows suggest; return the rates on rank 0, None on others. Collective."""
    proposals: list[tuple[Trial, ...]] = comm.gather(worth_trying(job, rows)) or []  # of each rank; on rank 0 only
    waiting_ranks = [rank for rank, proposal in enumerate(proposals) if proposal]
    proposed: set[Trial] = comm.broadcast({trial for proposal in proposals for trial in proposal})
    if not proposed:
        return None
    reader = job.workload.reader
    readers = max(1, reader.read_threads)
    more, fewer = READER_FACTOR * readers, max(1, readers // READER_FACTOR)
    trial_readers = {"more": more, "fewer": fewer}  # the other trials have the run's readers
    samples = reader.batch_size
    if job.train_plan.num_samples_per_file == 1:  # else smaller batches would read their files several times
        samples = min(samples, max(reader.io_depth, READ_BYTES // max(1, job.dataset.max_sample_bytes)))
    reader = replace(reader, preprocess_time=NO_TIME, batch_size=samples)
    same_job = replace(job, workload=replace(job.workload, reader=reader))
    larger_job = replace(job, workload=replace(job.workload, reader=replace(reader, transfer_size=LARGER_BYTES)))
    trials = ["same", *(trial for trial in ("more", "fewer", "larger") if trial in proposed), "again"]
    rates: dict[str, float] = {}
    for epoch, trial in enumerate(trials, len(job.schedule) + 1):  # after the run's epochs
        trial_job = larger_job if trial == "larger" else same_job
        rates[trial] = _rate(trial_job, comm, trial_readers.get(trial, readers), epoch, waiting_ranks)
    if comm.rank or any(math.isnan(rate) for rate in rates.values()):
        return None
    return Scaling(
        readers=job.ranks * readers,
        mb_per_second=rates["same"],
        more_readers=job.ranks * more if "more" in rates else 0,
        more_mb_per_second=rates.get("more", 0.0),
        again_mb_per_second=rates["again"],
        fewer_readers=job.ranks * fewer if "fewer" in rates else 0,
        fewer_mb_per_second=rates.get("fewer", 0.0),
        larger_request_bytes=LARGER_BYTES if "larger" in rates else 0,
        larger_mb_per_second=rates.get("larger", 0.0),
    )


def worth_trying(job: TrainingJob, rows: StepRows) -> tuple[Trial, ...]:
    """Return the trials that may be faster, by a rank's rows; none if it passed or lost little of its time to reads."""
    workload, reader = job.workload, job.workload.reader
    rows = rows[rows["phase"] == TRAINING].copy()
    passed = au_percent(rows) >= 100 * workload.metric.au
    rows["sync_ns"] = 0  # ignores waits for other ranks: their own rows explain those
    if not len(rows) or workload.metric.scaling_seconds <= 0 or job.read_by_loader or passed:
        return ()
    causes, work = explain_loss(workload, rows, ranks=1)
    if causes.total < MIN_LOSS_PERCENT or causes.storage < causes.total / 2:
        return ()
    is_remote = open_storage(workload.storage_spec.buffered).is_remote
    workers = max(1, reader.read_threads)
    requests_per_reader = reader.io_depth if is_remote else max(1.0, work.call_bytes / MAX_REQUEST_BYTES)  # in flight
    few_requests = job.ranks * work.readers * requests_per_reader < 2 * FEW_REQUESTS
    buffer_bytes = job.ranks * READER_FACTOR * workers * job.loader_spec(0).slot_bytes
    fits_memory = buffer_bytes < host_memory().available_bytes * MEMORY_SHARE
    sets_request_size = reader.engine == "fast" or (reader.engine == "matched" and reader.odirect)
    has_small_calls = (work.call_bytes or LARGER_BYTES) <= min(job.dataset.max_sample_bytes / 2, LARGER_BYTES / 4)
    is_worth: dict[Trial, bool] = {
        "more": few_requests and fits_memory,
        "fewer": workers > 1 and not is_remote,
        "larger": sets_request_size and has_small_calls and not is_remote,
    }
    return tuple(trial for trial, worth in is_worth.items() if worth)


def explain_loss(workload: Workload, rows: Rows, ranks: int) -> tuple[Causes, Work]:
    """Return why the accelerators of `ranks` ranks waited in these steps, and how their workers spent their time."""
    sleeps = preprocessing_sleeps(workload, rows)
    workers = ranks * max(1, workload.reader.read_threads)
    # A page fault in a mapped file holds Python's lock, so a read stops its whole worker.
    reads_stall = workload.dataset.format == "mmap_indexed_binary" and not workload.reader.odirect
    causes = find_causes(rows, preprocesses=sleeps, workers=workers, reads_stall=reads_stall)
    return causes, work_of(rows, preprocesses=sleeps)


def preprocessing_sleeps(workload: Workload, rows: Rows) -> bool:
    """Return whether emulated preprocessing slept; if it burned CPU time instead, the rows have `preprocess_cpu_ns`."""
    return not is_zero(workload.reader.preprocess_time) and not has_nonzero(rows, "preprocess_cpu_ns")


def _rate(job: TrainingJob, comm: Comm, readers: int, epoch: int, waiting_ranks: Sequence[int]) -> float:
    """Read with `readers` per rank; return the MB/s of all ranks on rank 0, NaN on others or on failure. Collective.

    The mean rate of `waiting_ranks`, which waited for reads in the run, is taken for all: others would get no faster.
    """
    with contextlib.suppress(DlemuError):  # if a file is missing, the reads below fail, too
        from dlemu.jobs.training.evict import evict

        evict(job, comm.local_rank, comm.local_size, write_first=False)
    comm.all_reduce_max(time.monotonic_ns())
    by_rank: list[tuple[int, float]] | None = comm.gather(_read(job, comm.rank, epoch, readers))
    if by_rank is None or any(seconds <= 0 for _, seconds in by_rank):
        return math.nan
    waiting = [by_rank[rank] for rank in waiting_ranks]
    mb_per_second = sum(app_bytes for app_bytes, _ in waiting) / 1e6 / max(seconds for _, seconds in waiting)
    return mb_per_second * len(by_rank) / len(waiting)


def _read(job: TrainingJob, rank: int, epoch: int, readers: int) -> tuple[int, float]:
    """Read batches in threads for `metric.scaling_seconds`; return bytes and seconds, both 0 if a read failed."""
    spec, plan = job.loader_spec(rank), job.train_plan
    steps, streams = range(1, plan.steps_per_epoch + 1), readers
    if job.group_rows:  # a part of the epoch for each reader: in turns, all would read the same row group, from memory
        streams = plan.worker_streams
    share = math.ceil(len(steps) / max(readers, streams))
    began = time.monotonic()

    def read_batches(reader_number: int) -> int:
        maker, buffer = BatchMaker(spec, reader_number), memoryview(bytearray(spec.slot_bytes))
        read_bytes, (part, stream) = 0, divmod(reader_number, streams)
        for step in steps[stream::streams][part * share : (part + 1) * share]:
            if time.monotonic() > began + job.workload.metric.scaling_seconds:
                break
            read_bytes += maker.make("train", epoch, step, 0, buffer).app_bytes
        return read_bytes

    try:
        with ThreadPoolExecutor(readers) as pool:
            return sum(pool.map(read_batches, range(readers))), time.monotonic() - began
    except Exception:
        return 0, 0.0
