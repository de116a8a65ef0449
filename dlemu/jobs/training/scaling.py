"""Would other readers have got more? Measured on the storage itself, right after a run that waited for its reads.

One rate does not distinguish a slow drive from one that would serve several reads as fast as one, nor from a disk
whose head goes back and forth between readers. So the ranks read batches of the epochs that would come next, by as
many readers as they had, by more, by fewer, in larger requests, and by as many again, for a moment each: a storage
whose speed changes meanwhile must not look like one that gives more to other readers. What can't help is not tried.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Literal

from datagen.errors import DlemuError
from datagen.storage.storage_base import open_storage
from dlemu.comm import Comm
from dlemu.comm.cgroup_limits import host_memory
from dlemu.config.duration import NO_TIME, Duration, is_zero
from dlemu.jobs.training.evict import evict
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import TRAINING, StepRows
from dlemu.loaders.loader_base import BatchMaker, LoaderSpec
from dlemu.metrics.au import au_percent
from dlemu.metrics.causes import find_causes, work_of
from dlemu.metrics.limit import Scaling, lost_to_reads, reads_may_be_too_few
from dlemu.metrics.rows import Rows, is_any

TIMES = 4  # what scales then clears MIN_SPEEDUP by far; more readers take more memory and cores
"""How many times the readers of the run are tried, and which part of them."""
LARGER_BYTES = 4 << 20
"""Of a read call, where those of the run were a quarter of that at most."""
MEMORY_SHARE = 0.25
"""Most of the available memory that their buffers may take."""


Try = Literal["more", "fewer", "larger"]


def try_other_readers(job: TrainingJob, comm: Comm, own: StepRows) -> Scaling | None:
    """Return on rank 0 what as many and other readers got; None elsewhere, and where nothing is tried. Collective.

    Any rank may ask for it, by its own rows: one that is ahead of the others loses its time to waiting for these. A
    read that fails ends the trial, not the run, which is over.
    """
    proposals: list[tuple[Try, ...]] | None = comm.gather(worth_trying(job, own))
    wanted: set[Try] = comm.broadcast({one for each in proposals or () for one in each})
    if not wanted:
        return None
    reader = job.workload.reader
    readers, fewer = max(1, reader.read_threads), max(1, reader.read_threads // TIMES)
    larger = replace(job, workload=replace(job.workload, reader=replace(reader, transfer_size=LARGER_BYTES)))
    trials: dict[str, tuple[TrainingJob, int]] = {"same": (job, readers)}
    trials |= {"more": (job, TIMES * readers)} if "more" in wanted else {}
    trials |= {"fewer": (job, fewer)} if "fewer" in wanted else {}
    trials |= {"larger": (larger, readers)} if "larger" in wanted else {}
    trials["again"] = job, readers
    got = {
        name: _rate(tried, comm, count, len(job.schedule) + turn)
        for turn, (name, (tried, count)) in enumerate(trials.items(), 1)
    }
    rates = {name: rate for name, rate in got.items() if rate is not None}
    if len(rates) < len(trials):
        return None
    return Scaling(
        readers=job.ranks * readers,
        mb_per_second=rates["same"],
        more_readers=job.ranks * readers * TIMES if "more" in rates else 0,
        more_mb_per_second=rates.get("more", 0.0),
        again_mb_per_second=rates["again"],
        fewer_readers=job.ranks * fewer if "fewer" in rates else 0,
        fewer_mb_per_second=rates.get("fewer", 0.0),
        larger_request_bytes=LARGER_BYTES if "larger" in rates else 0,
        larger_mb_per_second=rates.get("larger", 0.0),
    )


def worth_trying(job: TrainingJob, rows: StepRows) -> tuple[Try, ...]:
    """Return what may have got more, where a rank's own steps were lost to reads; nothing where they were not."""
    workload = job.workload
    rows = rows[rows["phase"] == TRAINING].copy()
    au = au_percent(rows)
    rows["sync_ns"] = 0  # what it lost to other ranks is theirs to judge
    if not len(rows) or workload.metric.scaling_seconds <= 0 or job.read_by_loader:
        return ()
    if au >= 100 * workload.metric.au:
        return ()
    preprocesses = slept(workload.reader.preprocess_time, rows)
    workers = max(1, workload.reader.read_threads)
    causes = find_causes(rows, preprocesses=preprocesses, workers=workers)
    work = work_of(rows, preprocesses=preprocesses)
    io_depth = workload.reader.io_depth if open_storage(workload.storage_spec.buffered).is_remote else None
    if not lost_to_reads(causes):
        return ()
    spec, room = job.loader_spec(0), host_memory().available_bytes * MEMORY_SHARE
    trials: list[Try] = []
    if reads_may_be_too_few(causes, work, job.ranks, io_depth) and job.ranks * TIMES * workers * spec.slot_bytes < room:
        trials.append("more")
    if workers > 1 and io_depth is None:
        trials.append("fewer")
    asks = workload.reader.engine == "fast" or (workload.reader.engine == "matched" and workload.reader.odirect)
    called = work.call_bytes or LARGER_BYTES
    sample_bytes = job.found.max_sample_bytes
    if asks and io_depth is None and called <= min(sample_bytes / 2, LARGER_BYTES / TIMES):
        trials.append("larger")
    return tuple(trials)


def slept(preprocess_time: Duration, rows: Rows) -> bool:
    """Return whether workers slept in emulated preprocessing; else they computed, by an account of its own."""
    return not is_zero(preprocess_time) and not is_any(rows, "preprocess_cpu_ns")


def _rate(job: TrainingJob, comm: Comm, readers: int, epoch: int) -> float | None:
    """Read with so many readers on each rank; return MB/s of all together on rank 0, None elsewhere or on failure."""
    with contextlib.suppress(DlemuError):  # a file that is gone is met again by who reads it
        evict(job, comm.local_rank, comm.local_size, write_first=False)
    crew = _Crew(job, comm.rank, epoch)
    comm.all_reduce_max(time.monotonic_ns())
    readings: list[tuple[int, float]] | None = comm.gather(crew.read(readers, job.workload.metric.scaling_seconds))
    if readings is None or any(seconds <= 0 for _, seconds in readings):
        return None
    return sum(app_bytes for app_bytes, _ in readings) / 1e6 / max(seconds for _, seconds in readings)


class _Crew:
    """Readers of one rank, as threads: what they wait for releases the interpreter."""

    def __init__(self, job: TrainingJob, rank: int, epoch: int) -> None:
        self._spec: LoaderSpec = replace(job.loader_spec(rank), preprocess_time=NO_TIME)
        self._epoch, self._steps = epoch, iter(range(1, job.train_plan.steps_per_epoch + 1))
        self._lock = threading.Lock()
        self._app_bytes, self._failed = 0, False

    def read(self, readers: int, seconds: float) -> tuple[int, float]:
        """Read each batch once at most, for so long; return the bytes and the seconds it took, 0 when a read failed."""
        began = time.monotonic()
        threads = [threading.Thread(target=self._work, args=(number, began + seconds)) for number in range(readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._app_bytes, 0.0 if self._failed else time.monotonic() - began

    def _work(self, number: int, deadline: float) -> None:
        try:
            maker, room = BatchMaker(self._spec, number), memoryview(bytearray(self._spec.slot_bytes))
            while time.monotonic() < deadline:
                with self._lock:
                    step = next(self._steps, None)
                if step is None:
                    return
                trace = maker.make("train", self._epoch, step, 0, room)
                with self._lock:
                    self._app_bytes += trace.app_bytes
        except Exception:  # the run is over and measured; a trial that fails tells nothing
            self._failed = True
