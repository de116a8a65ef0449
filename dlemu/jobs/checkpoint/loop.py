"""The measurement loop of a checkpoint run: each rank writes all checkpoints, then reads them; rank 0 gathers the logs.

For each checkpoint, as in DLIO (main.py, `_checkpoint`): compute (a sleep), a barrier, then each rank writes or reads
its files. With `checkpoint.asynchronous`, files are written during the next computation (`dlemu.checkpoints.save`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain

from datagen.content import BulkContent
from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.checkpoints.io_rows import IO_COLUMNS, IO_DTYPE, READ, WHOLE, WRITE, count_finished, finished_name
from dlemu.checkpoints.movers import Columns, make_buffers
from dlemu.checkpoints.read_files import CheckpointReader, check_is_file, read_pattern
from dlemu.checkpoints.save import begin_saving
from dlemu.checkpoints.stored import remove_checkpoint, user_error, write_note
from dlemu.checkpoints.write_files import CheckpointWriter, PieceRing
from dlemu.jobs.checkpoint.measured import CheckpointJournal, UnderWay
from dlemu.jobs.checkpoint.plan import CheckpointJob
from dlemu.machine.clock import MonotonicClock
from dlemu.machine.environment import describe_storage, existing_folder
from dlemu.ranks import Comm, within
from dlemu.ranks.row_log import RowLog, row_log_name
from dlemu.results.measured import MeasuredLog
from dlemu.runner.recording import RankRecord

# Columns of the row of a whole checkpoint that are sums over its files
_SUMMED = ("bytes", "call_ns", "starved_ns", "cpu_ns", "storage_bytes", "mover_cpu_ns", "mover_cpu_wait_ns")
_KEYS = ("rank", "phase", "checkpoint", "began_ns")  # columns that the rows of its files repeat
_ENDLESS_BYTES = 1 << 50  # a pebibyte: no host generates that much during the measurement
_CEILING_SHARE = 0.25  # share of `metric.ceiling_seconds` spent on generating content, by default some GB


class CheckpointRank:
    """Writes and reads one rank's files of all checkpoints; calls `watch` after each file."""

    def __init__(
        self, job: CheckpointJob, comm: Comm, watch: Callable[[], None], record: RankRecord[CheckpointJournal]
    ) -> None:
        self._job, self._comm, self._watch, self._record = job, comm, watch, record
        if job.settings.recovery_rank_shift and job.sources:
            is_block = comm.rank == comm.node * comm.local_size + comm.local_rank  # else a shift may stay on the host
            if not is_block or comm.local_size == comm.size:
                wanted = "wanted two or more hosts with equally many ranks, placed host by host"
                raise UserError(f"checkpoint.recovery_rank_shift reads what another host's rank wrote: {wanted}")
        self._storage = open_storage(job.storage_spec)
        self._clock = MonotonicClock()
        self._log = RowLog(IO_DTYPE, job.live_path(row_log_name(comm.rank)))

    def run(self) -> MeasuredLog[CheckpointJournal] | None:
        """Write, then read; return the log of all ranks on rank 0, None on others. Raises DlemuError."""
        folder = self._job.settings.checkpoint_folder
        local = self._storage.local_path(folder)
        self._record.start(lambda: self._storage.device_folders([existing_folder(local)] if local else []))
        try:
            with contextlib.closing(self._log):
                self._record.describe(lambda: describe_storage(self._job.workload.storage_spec, folder))
                cpu_seconds = self._write_and_read()
        except OSError as error:  # of writing a note, deleting or evicting: transfers raise UserError themselves
            raise user_error(error, error.filename or folder) from error
        self._record.stop()
        return self._record.collect(self._log.rows, cpu_seconds=cpu_seconds)

    def _write_and_read(self) -> float:
        """Remove replaced checkpoints, write, then read; return the CPU time of writing and reading, s."""
        job = self._job
        offsets_ns = self._comm.synchronise_clocks()
        if len(offsets_ns) > 1:
            self._record.note(clock_offsets_ns=offsets_ns)
        if self._comm.rank == 0 and job.num_writes:
            for checkpoint in job.replaced:  # before writing, because there may be no space for both
                remove_checkpoint(self._storage, job.folder_of(checkpoint), job.plan.names)
            self._storage.remove(job.token_path)
        self._barrier()
        cpu_seconds_before = time.process_time()
        if job.num_writes:
            self._write()
        if job.sources:
            self._read()
        return time.process_time() - cpu_seconds_before

    def _measure_ceiling(self, buffers: list[memoryview]) -> float | None:
        """Return, on rank 0, the rate at which all ranks generate content, 1e9 bytes/s; None if off, or on others."""
        seconds = _CEILING_SHARE * self._job.workload.metric.ceiling_seconds
        if seconds <= 0:
            return None
        content = BulkContent(self._job.seed)
        ring = PieceRing([(_ENDLESS_BYTES, lambda buffer, offset: content.fill(buffer, 0, offset))], buffers, 1)
        self._barrier()
        generated_bytes = 0
        began = time.monotonic()
        for piece, _ in ring.pieces({"starved_ns": 0}):
            generated_bytes += len(piece)
            if time.monotonic() >= began + seconds:
                break
        elapsed = time.monotonic() - began
        ring.close()
        rates = self._comm.gather(generated_bytes / 1e9 / elapsed)
        return sum(rates) if rates is not None else None

    def _write(self) -> None:
        """Write the checkpoints. The last asynchronous one is followed by computation, too, while it is written."""
        job, settings, rank = self._job, self._job.settings, self._comm.rank
        sizes = [file.size_bytes for file in job.files(rank, 1)]
        buffers = make_buffers(settings.writers, settings.transfer_size, max(sizes, default=0))
        self._record.note(ceiling_gb_per_second=self._measure_ceiling(buffers))
        in_progress: tuple[Columns, Future[int]] | None = None  # the previous checkpoint, if asynchronous
        for checkpoint in range(1, job.num_writes + 1):
            self._compute()
            waited_ns = 0 if in_progress is None else self._finish_asynchronous(*in_progress)
            self._record.note(under_way=UnderWay(phase="write", checkpoint=checkpoint))
            if rank == 0:
                self._storage.make_folder(job.folder_of(checkpoint))
                write_note(self._storage, job.folder_of(checkpoint), job.note(checkpoint), fsync=True)
            files = job.files(rank, checkpoint)
            writer = CheckpointWriter(self._storage, files, buffers, settings, job.timeout_seconds)
            row = self._begin(WRITE, checkpoint, waited_ns)
            write = partial(self._write_files, writer, row)
            row["released_ns"], written = begin_saving(settings, self._comm, self._clock, sum(sizes), write)
            if settings.asynchronous:
                in_progress = row, written
            else:
                all_ended_ns = self._barrier()
                ended_ns = all_ended_ns if settings.rank_sync else written.result()
                self._complete(row, ended_ns, ended_ns)
        if in_progress is not None:
            self._compute()
            self._finish_asynchronous(*in_progress)

    def _write_files(self, writer: CheckpointWriter, row: Columns, began_ns: int) -> None:
        row["began_ns"] = began_ns  # an asynchronous checkpoint begins after its snapshot, which needs no storage
        writer.write(partial(self._add_file, row))
        if not self._job.settings.fsync:
            return
        # Only the last rank to finish on each host calls fsync for the folder, because file systems serialise it.
        # Without the live folder, where ranks count how many have finished, no rank knows the last one: all call it.
        checkpoint = row["checkpoint"]
        finished_path = self._job.live_path(finished_name(self._comm.node))
        if finished_path and count_finished(finished_path) < checkpoint * self._comm.local_size:
            return
        folder = self._job.folder_of(checkpoint)
        sync_began_ns = time.monotonic_ns()
        within(self._job.timeout_seconds, lambda: self._storage.sync(folder), f"fsync of the folder {folder}")
        row["folder_sync_ns"] = time.monotonic_ns() - sync_began_ns
        row["fsync_ns"] += row["folder_sync_ns"]

    def _finish_asynchronous(self, row: Columns, written: Future[int]) -> int:
        """Complete an asynchronous checkpoint when all ranks have written it; return how long training waited, ns."""
        ready_ns = self._barrier()  # all ranks are ready for the next checkpoint
        ended_ns = written.result()
        row["waited_ns"] = self._barrier() - ready_ns
        self._complete(row, ended_ns, row["released_ns"])
        return row["waited_ns"]

    def _complete(self, row: Columns, ended_ns: int, released_ns: int) -> None:
        """Log a checkpoint that all ranks have written, mark it complete and remove the one beyond `keep_last`."""
        self._end(row, ended_ns, released_ns)
        job, checkpoint = self._job, row["checkpoint"]
        removed = max(0, checkpoint - job.num_kept)
        if self._comm.rank == 0:
            note = replace(job.note(checkpoint), complete=True)
            write_note(self._storage, job.folder_of(checkpoint), note, fsync=True)
            if removed:
                remove_checkpoint(self._storage, job.folder_of(removed), job.plan.names)
        complete = (*self._record.journal.complete, checkpoint)
        self._record.note(complete=complete, removed=tuple(range(1, removed + 1)), under_way=None)

    def _read(self) -> None:
        """Read the checkpoints: this rank's files or, with `recovery_rank_shift`, those of another host's rank."""
        job, settings = self._job, self._job.settings
        shift = self._comm.local_size if settings.recovery_rank_shift else 0
        read_rank = (self._comm.rank + shift) % job.ranks
        files = {checkpoint: job.files(read_rank, checkpoint) for checkpoint in job.sources}
        if settings.evict_page_cache:
            self._barrier()
            for file in chain.from_iterable(files.values()):
                with contextlib.suppress(FileNotFoundError):  # reading it reports the error
                    check_is_file(self._storage, file.path)
                    self._storage.evict(file.path, write_first=True)
            self._barrier()
        reader = CheckpointReader(self._storage, read_pattern(settings), verify=settings.verify)
        with contextlib.closing(reader):
            for checkpoint, note in job.sources.items():
                self._record.note(under_way=UnderWay(phase="read", checkpoint=checkpoint))
                self._compute()
                row = self._begin(READ, checkpoint)
                reader.read(files[checkpoint], partial(self._add_file, row), content_known=note is not None)
                rank_ended_ns = time.monotonic_ns()
                all_ended_ns = self._barrier()
                ended_ns = all_ended_ns if settings.rank_sync else rank_ended_ns
                self._end(row, ended_ns, ended_ns)
                self._record.note(under_way=None)

    def _compute(self) -> None:
        """Sleep for the computation that precedes each checkpoint in DLIO."""
        seconds = max(0.0, self._job.settings.time_between_checkpoints)
        self._clock.sleep_until(time.monotonic_ns() + round(seconds * 1e9))

    def _barrier(self) -> int:
        """Wait for all ranks; return the time after, ns."""
        self._comm.all_reduce_max(time.monotonic_ns())
        return time.monotonic_ns()

    def _begin(self, phase: int, checkpoint: int, waited_ns: int = 0) -> Columns:
        """Wait for all ranks; return the rank's row of the checkpoint: `_add_file` adds to it, `_end` logs it."""
        self._record.mark()
        keys = {"rank": self._comm.rank, "phase": phase, "checkpoint": checkpoint, "file": WHOLE}
        asked_ns = time.monotonic_ns() - waited_ns  # ready for this checkpoint, but waiting for the previous one
        return dict.fromkeys(IO_COLUMNS, 0) | keys | {"asked_ns": asked_ns, "began_ns": self._barrier()}

    def _add_file(self, row: Columns, number: int, file: Columns) -> None:
        """Add a file to the checkpoint's row, and at once to the log, so that it survives if the run is killed."""
        for name in _SUMMED:
            row[name] += file[name]
        row["fsync_ns"] += file["synced_ns"] - file["moved_ns"]
        row["threads"] = file["threads"]
        self._log.add(**{name: row[name] for name in _KEYS}, **file, file=number)
        self._watch()

    def _end(self, row: Columns, ended_ns: int, released_ns: int) -> None:
        """Add the row of a whole checkpoint to the log; training resumed at `released_ns`."""
        row |= {"started_ns": row["began_ns"], "ended_ns": ended_ns, "released_ns": released_ns}
        self._log.add(**row)
        self._record.mark()
