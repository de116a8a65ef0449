"""Would more readers have got more? Asked of the storage itself, right after a run that waited for a few reads.

One rate does not tell a slow drive from one that would serve several reads as fast as one. So the ranks read batches of
the epochs that would come next, by as many readers as they had, by more, and by as many again, for a moment each: a
storage whose speed changes meanwhile must not look like one that gives more to more readers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace

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
from dlemu.metrics.limit import Scaling, reads_may_be_too_few
from dlemu.metrics.rows import Rows, is_any

TIMES = 4
"""How many times the readers of the run are tried."""
MEMORY_SHARE = 0.25
"""Most of the available memory that their buffers may take."""


def try_more_readers(job: TrainingJob, comm: Comm, own: StepRows) -> Scaling | None:
    """Return on rank 0 what as many and more readers got; None elsewhere, and where nothing is to be asked. Collective.

    Any rank may ask for it, by its own rows: one that is ahead of the others loses its time to waiting for these. A
    read that fails ends the trial, not the run, which is over.
    """
    asked: list[bool] | None = comm.gather(worth_trying(job, own))
    wanted: bool = comm.broadcast(any(asked or ()))
    if not wanted:
        return None
    readers = max(1, job.workload.reader.read_threads)
    rates = [
        _rate(job, comm, count, len(job.schedule) + turn)
        for turn, count in enumerate((readers, TIMES * readers, readers), 1)
    ]
    same, more, again = rates
    if same is None or more is None or again is None:
        return None
    return Scaling(
        readers=job.ranks * readers,
        mb_per_second=same,
        more_readers=job.ranks * readers * TIMES,
        more_mb_per_second=more,
        again_mb_per_second=again,
    )


def worth_trying(job: TrainingJob, rows: StepRows) -> bool:
    """Say whether a rank's own steps were lost to a few reads at a time."""
    workload = job.workload
    rows = rows[rows["phase"] == TRAINING].copy()
    au = au_percent(rows)
    rows["sync_ns"] = 0  # what it lost to other ranks is theirs to judge
    if not len(rows) or workload.metric.scaling_seconds <= 0 or job.read_by_loader:
        return False
    if au >= 100 * workload.metric.au:
        return False
    preprocesses = slept(workload.reader.preprocess_time, rows)
    workers = max(1, workload.reader.read_threads)
    wanted_bytes = job.ranks * TIMES * workers * job.loader_spec(0).slot_bytes
    if wanted_bytes > host_memory().available_bytes * MEMORY_SHARE:
        return False
    causes = find_causes(rows, preprocesses=preprocesses, workers=workers)
    work = work_of(rows, preprocesses=preprocesses, workers=workers)
    io_depth = workload.reader.io_depth if open_storage(workload.storage_spec.buffered).is_remote else None
    return reads_may_be_too_few(causes, work, job.ranks, io_depth)


def slept(preprocess_time: Duration, rows: Rows) -> bool:
    """Say whether workers slept in emulated preprocessing; else they computed, by an account of its own."""
    return not is_zero(preprocess_time) and not is_any(rows, "preprocess_cpu_ns")


def _rate(job: TrainingJob, comm: Comm, readers: int, epoch: int) -> float | None:
    """Read with so many readers on each rank; return MB/s of all together on rank 0, None elsewhere or on failure."""
    with contextlib.suppress(DlemuError):  # a file that is gone is met again by who reads it
        evict(job, comm.local_rank, comm.local_size, write_first=False)
    crew = _Crew(job, comm.rank, epoch)
    comm.all_reduce_max(time.monotonic_ns())
    told: list[tuple[int, float]] | None = comm.gather(crew.read(readers, job.workload.metric.scaling_seconds))
    if told is None or any(seconds <= 0 for _, seconds in told):
        return None
    return sum(app_bytes for app_bytes, _ in told) / 1e6 / max(seconds for _, seconds in told)


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
