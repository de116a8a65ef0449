"""The measurement loop of a checkpoint run: each rank writes all checkpoints, then reads them; rank 0 gathers the logs.

The order is DLIO's (main.py, `_checkpoint`): compute (a sleep), a barrier, then each rank writes or reads its files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace

from datagen.bulk_content import BulkContent
from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.checkpoints.io_rows import IO_DTYPE, READ, WHOLE, WRITE, count_finished, finished_path, rows_path
from dlemu.checkpoints.piece_ring import PieceRing, make_buffers
from dlemu.checkpoints.read_files import CheckpointReader, check_is_file, read_pattern
from dlemu.checkpoints.stored import remove_checkpoint, write_note
from dlemu.checkpoints.write_files import NO_SPACE, CheckpointWriter, Drain, explained
from dlemu.jobs.checkpoint.measured import CheckpointJournal, UnderWay
from dlemu.jobs.checkpoint.plan import CheckpointJob, ReadSource
from dlemu.jobs.checkpoint.prepare import with_replaced_here
from dlemu.machine.clock import MonotonicClock
from dlemu.machine.environment import describe_storage, existing_folder
from dlemu.ranks import Comm, within
from dlemu.ranks.row_log import RowLog
from dlemu.results.measured import MeasuredLog
from dlemu.runner.recording import RankRecord

_MOVERS = ("mover_cpu_ns", "mover_cpu_wait_ns")
_ENDLESS_BYTES = 1 << 50  # a pebibyte: no host generates that much during the measurement
_CEILING_SHARE = 0.25
"""Of `metric.ceiling_seconds`: generating content takes no longer to measure, by default some GB on all cores."""

Columns = dict[str, int]
"""A file's columns of a row of `io_rows`."""
Watcher = Callable[[], None]
"""Called after each file."""


def run_checkpoints(
    job: CheckpointJob, comm: Comm, record: RankRecord[CheckpointJournal], watch: Watcher = lambda: None
) -> MeasuredLog[CheckpointJournal] | None:
    """Write and read this rank's part of all checkpoints; return the log on rank 0; raises DlemuError."""
    comm.set_timeout(job.timeout_seconds)
    storage, folder = open_storage(job.workload.storage_spec.buffered), job.settings.checkpoint_folder
    local = storage.local_path(folder)
    record.start(lambda: storage.device_folders([existing_folder(local)] if local else []))
    rank = _CheckpointRank(job, comm, watch, record)
    rank.run()
    record.stop()
    cpu_seconds = time.process_time() - rank.cpu_seconds_before
    return record.collect(rank.log.rows, cpu_seconds=cpu_seconds)


class _CheckpointRank:
    """State and steps of one rank's run."""

    def __init__(self, job: CheckpointJob, comm: Comm, watch: Watcher, record: RankRecord[CheckpointJournal]) -> None:
        self._job, self._comm, self._watch, self._record = job, comm, watch, record
        self._storage = open_storage(job.storage_spec)
        self._clock = MonotonicClock()
        self.log = RowLog(IO_DTYPE, job.live_path(rows_path("", comm.rank)))
        self.cpu_seconds_before = 0.0
        self._written, self._folder_sync_ns = 0, 0
        """Checkpoints whose files this rank has written; duration of its fsync of the last one's folder."""

    def run(self) -> None:
        """Write and read."""
        with contextlib.closing(self.log):
            try:
                self._run()
            except OSError as error:  # while writing a note, deleting or evicting
                path = error.filename or self._job.settings.checkpoint_folder
                if error.errno in NO_SPACE:
                    raise explained(error, path, 0) from error
                raise UserError(
                    f"{path} can't be written, removed or accessed: {error.strerror or error}; see `dmesg` and "
                    "what else uses the folder, or set checkpoint.checkpoint_folder to another one"
                ) from error

    def _run(self) -> None:
        self._describe()
        self._remove_replaced()
        settings = self._job.settings
        self.cpu_seconds_before = time.process_time()
        if self._job.writes:
            files = self._job.files_to_write(self._comm.rank, 1)
            largest = max((file.size_bytes for file in files), default=0)
            buffers = make_buffers(settings.writers, settings.transfer_size, largest)
            self._record.note(ceiling_gb_per_second=self._measure_ceiling(buffers))
            (self._write_asynchronously if settings.asynchronous else self._write)(buffers)
            del buffers
        if self._job.sources:
            if settings.evict_page_cache:
                self._evict()
            reader = CheckpointReader(self._storage, read_pattern(settings), verify=settings.verify)
            with contextlib.closing(reader):
                for source in self._job.sources:
                    self._read(reader, source)

    def _describe(self) -> None:
        workload, folder = self._job.workload, self._job.settings.checkpoint_folder
        self._record.describe(lambda: describe_storage(workload.storage_spec, folder))
        offsets_ns = self._comm.synchronise_clocks()
        if len(offsets_ns) > 1:
            self._record.note(clock_offsets_ns=offsets_ns)

    def _remove_replaced(self) -> None:
        """Remove the checkpoints that this run replaces, as there may be no space for both."""
        if self._owns_folders:
            for checkpoint in with_replaced_here(self._job, self._storage).replaced:
                remove_checkpoint(self._storage, self._job.folder_of(checkpoint), self._job.plan.names)
        if self._job.token and self._comm.rank == 0:  # rank 0 left it: with `node_local`, other hosts don't have it
            self._storage.remove(f"{self._job.settings.checkpoint_folder.rstrip('/')}/{self._job.token}")
        self._barrier()

    @property
    def _owns_folders(self) -> bool:
        """Whether this rank makes and removes the folders, for all ranks or (`node_local`) those of its host."""
        return self._comm.local_rank == 0 if self._job.settings.node_local else self._comm.rank == 0

    def _measure_ceiling(self, buffers: list[memoryview]) -> float | None:
        """Return the rate at which all ranks generate content without writing it, 1e9 bytes/s; None if switched off."""
        seconds = _CEILING_SHARE * self._job.workload.metric.ceiling_seconds
        if seconds <= 0:
            return None
        content = BulkContent(self._job.seed)
        ring = PieceRing([(_ENDLESS_BYTES, lambda buffer, offset: content.fill(buffer, 0, offset))], buffers, 1)
        self._barrier()
        moved, deadline = 0, time.monotonic() + seconds
        began = time.monotonic()
        while time.monotonic() < deadline and (taken := ring.take(0)) is not None:
            moved += len(taken[0][0])
            ring.give_back(taken[1])
        took = time.monotonic() - began
        ring.close()
        rates = self._comm.gather(moved / 1e9 / took)
        return sum(rates) if rates is not None else None

    def _write(self, buffers: list[memoryview]) -> None:
        for checkpoint in range(1, self._job.writes + 1):
            writer = self._prepare(checkpoint, buffers)
            try:
                ready_ns = self._compute(writer)
                began_ns = self._barrier()
                files: list[Columns] = []
                self._write_files(checkpoint, writer, began_ns, files)
                ended_ns = self._end_time()
                self._add_checkpoint(WRITE, checkpoint, files, ready_ns, began_ns, ended_ns, ended_ns)
                self._complete(checkpoint)
            except BaseException:
                writer.discard()
                raise

    def _write_asynchronously(self, buffers: list[memoryview]) -> None:
        """Write asynchronously; computing also after the last one gives each checkpoint the same time to be written."""
        finish: Callable[[int], None] | None = None
        for checkpoint in range(1, self._job.writes + 2):
            self._clock.sleep_until(time.monotonic_ns() + self._compute_ns)
            ready_ns = self._barrier()
            if finish is not None:
                finish(ready_ns)
            if checkpoint <= self._job.writes:
                finish = self._snapshot(checkpoint, buffers, ready_ns)

    def _snapshot(self, checkpoint: int, buffers: list[memoryview], ready_ns: int) -> Callable[[int], None]:
        """Take a snapshot and begin to write it; return what waits until it is written.

        That is called with the time when the next checkpoint is due, which the wait delays.
        """
        writer = self._prepare(checkpoint, buffers)
        writer.wait_ready()
        self._record.mark(training=True)
        began_ns = self._barrier()
        size_bytes = self._job.plan.rank_bytes[self._comm.rank]
        self._clock.sleep_until(began_ns + round(size_bytes / self._job.settings.snapshot_gb_per_second))
        released_ns, files = self._barrier(), list[Columns]()  # it begins here: a snapshot is no time of the storage

        def write() -> int:
            self._write_files(checkpoint, writer, released_ns, files)
            return time.monotonic_ns()

        drain = Drain(write)

        def finish(due_ns: int) -> None:
            try:
                ended_ns = drain.wait()
                waited_ns = self._barrier() - due_ns
                self._add_checkpoint(WRITE, checkpoint, files, ready_ns, released_ns, ended_ns, released_ns, waited_ns)
                self._complete(checkpoint)
            except BaseException:
                writer.discard()
                raise

        return finish

    def _prepare(self, checkpoint: int, buffers: list[memoryview]) -> CheckpointWriter:
        """Make the checkpoint's folder with its note (incomplete), and start generating content."""
        self._record.note(under_way=UnderWay(phase="write", checkpoint=checkpoint))
        if self._owns_folders:
            folder = self._job.folder_of(checkpoint)
            try:
                self._storage.make_folder(folder)
                write_note(self._storage, folder, self._job.note(checkpoint, len(self._comm.hosts)), fsync=True)
            except OSError as error:
                raise explained(error, folder, 0) from error
        settings = self._job.settings
        return CheckpointWriter(
            self._storage,
            self._job.files_to_write(self._comm.rank, checkpoint),
            buffers,
            threads=settings.writers,
            fsync=settings.fsync,
            sync_seconds=self._job.timeout_seconds,
        )

    def _write_files(self, checkpoint: int, writer: CheckpointWriter, began_ns: int, files: list[Columns]) -> None:
        def done(number: int, moved: Columns) -> None:
            files.append(moved)
            self._add_file(WRITE, checkpoint, began_ns, number, moved)

        writer.write(done)
        if self._job.settings.fsync:
            self._sync_folder(checkpoint)

    def _sync_folder(self, checkpoint: int) -> None:
        """Fsync the checkpoint's folder if all other ranks of this host are done: file systems serialise such calls."""
        self._written += 1
        self._folder_sync_ns = 0
        if os.path.isdir(self._job.live_folder):  # else (another host) every rank syncs
            done = count_finished(finished_path(self._job.live_folder, self._comm.node))
            if done < self._written * self._comm.local_size:
                return
        began_ns, folder = time.monotonic_ns(), self._job.folder_of(checkpoint)
        within(self._job.timeout_seconds, lambda: self._storage.sync(folder), f"fsync of the folder {folder}")
        self._folder_sync_ns = time.monotonic_ns() - began_ns

    def _complete(self, checkpoint: int) -> None:
        """Mark the checkpoint complete when every rank has written its part, and remove the one beyond `keep_last`."""
        self._barrier()
        self._record.mark(training=False)
        removed = max(0, checkpoint - self._job.kept)
        if self._owns_folders:
            note = replace(self._job.note(checkpoint, len(self._comm.hosts)), complete=True)
            write_note(self._storage, self._job.folder_of(checkpoint), note, fsync=True)
            if removed:
                remove_checkpoint(self._storage, self._job.folder_of(removed), self._job.plan.names)
        self._record.note(
            complete=(*self._record.journal.complete, checkpoint), removed=tuple(range(1, removed + 1)), under_way=None
        )

    def _evict(self) -> None:
        """Evict the files that this rank will read from the page cache."""
        self._barrier()
        for source in self._job.sources:
            for file in self._job.files_to_read(self._comm.rank, source, self._comm.local_size):
                try:
                    check_is_file(self._storage, file.path)
                    self._storage.evict(file.path, write_first=True)
                except FileNotFoundError:
                    continue  # reading it reports the error
        self._barrier()

    def _read(self, reader: CheckpointReader, source: ReadSource) -> None:
        files = self._job.files_to_read(self._comm.rank, source, self._comm.local_size)
        self._record.note(under_way=UnderWay(phase="read", checkpoint=source.checkpoint))
        ready_ns = self._compute(None)
        began_ns = self._barrier()
        moved: list[Columns] = []

        def done(number: int, file: Columns) -> None:
            moved.append(file)
            self._add_file(READ, source.checkpoint, began_ns, number, file)

        reader.read(files, done)
        ended_ns = self._end_time()
        self._add_checkpoint(READ, source.checkpoint, moved, ready_ns, began_ns, ended_ns, ended_ns)
        self._barrier()
        self._record.mark(training=False)
        self._record.note(under_way=None)

    @property
    def _compute_ns(self) -> int:
        return round(max(0.0, self._job.settings.time_between_checkpoints) * 1e9)

    def _compute(self, writer: CheckpointWriter | None) -> int:
        """Sleep as DLIO computes before each checkpoint, then wait for content to be ready; return the time after."""
        self._clock.sleep_until(time.monotonic_ns() + self._compute_ns)
        if writer is not None:
            writer.wait_ready()
        self._record.mark(training=True)
        return time.monotonic_ns()

    def _end_time(self) -> int:
        """Return the time at which this rank, or with `rank_sync` every rank, was done."""
        return self._barrier() if self._job.settings.rank_sync else time.monotonic_ns()

    def _barrier(self) -> int:
        """Wait for all ranks (a barrier); return the time after."""
        self._comm.all_reduce_max(time.monotonic_ns())
        return time.monotonic_ns()

    def _add_file(self, phase: int, checkpoint: int, began_ns: int, number: int, file: Columns) -> None:
        """Log a file right after its transfer, so that it is kept even if the run is killed during the next one."""
        self.log.add(rank=self._comm.rank, phase=phase, checkpoint=checkpoint, began_ns=began_ns, **file, file=number)
        self._watch()

    def _add_checkpoint(
        self,
        phase: int,
        checkpoint: int,
        files: list[Columns],
        ready_ns: int,
        began_ns: int,
        ended_ns: int,
        released_ns: int,
        waited_ns: int = 0,
    ) -> None:
        """Log this rank's row of the whole checkpoint, summed over its files."""
        folder_sync_ns = self._folder_sync_ns if phase == WRITE else 0
        summed = ("bytes", "call_ns", "starved_ns", "cpu_ns", "content_cpu_ns", "storage_bytes", *_MOVERS)
        self.log.add(
            rank=self._comm.rank,
            phase=phase,
            checkpoint=checkpoint,
            began_ns=began_ns,
            **{name: sum(file[name] for file in files) for name in summed},
            file=WHOLE,
            threads=max((file["threads"] for file in files), default=0),
            asked_ns=ready_ns,
            started_ns=began_ns,
            released_ns=released_ns,
            waited_ns=waited_ns,
            ended_ns=ended_ns,
            fsync_ns=sum(file["synced_ns"] - file["moved_ns"] for file in files) + folder_sync_ns,
            folder_sync_ns=folder_sync_ns,
        )
