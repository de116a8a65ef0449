"""The measurement loop of a checkpoint run: each rank writes all checkpoints, then reads them; rank 0 gathers the logs.

The order is DLIO's (main.py, `_checkpoint`): compute (a sleep), a barrier, then each rank writes or reads its files.
With `checkpoint.asynchronous`, the files of one checkpoint are written during the computation before the next:

    compute | snapshot 1 | compute, 1 drains | wait for 1 | snapshot 2 | compute, 2 drains | wait for 2
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from datagen.content import BulkContent
from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.io_rows import IO_DTYPE, READ, WHOLE, WRITE, count_finished, finished_path, rows_path
from dlemu.checkpoints.movers import Columns
from dlemu.checkpoints.piece_ring import PieceRing, make_buffers
from dlemu.checkpoints.read_files import CheckpointReader, check_is_file, read_pattern
from dlemu.checkpoints.save import Saving
from dlemu.checkpoints.stored import remove_checkpoint, write_note
from dlemu.checkpoints.write_files import NO_SPACE, CheckpointWriter, explained
from dlemu.jobs.checkpoint.measured import CheckpointJournal, UnderWay
from dlemu.jobs.checkpoint.plan import CheckpointJob, ReadSource
from dlemu.machine.clock import MonotonicClock
from dlemu.machine.environment import describe_storage, existing_folder
from dlemu.ranks import Comm, within
from dlemu.ranks.row_log import RowLog
from dlemu.results.measured import MeasuredLog
from dlemu.runner.recording import RankRecord

# Columns of the row of a whole checkpoint that are sums over its files
_SUMMED = ("bytes", "call_ns", "starved_ns", "cpu_ns", "storage_bytes", "mover_cpu_ns", "mover_cpu_wait_ns")
_ENDLESS_BYTES = 1 << 50  # a pebibyte: no host generates that much during the measurement
_CEILING_SHARE = 0.25  # share of `metric.ceiling_seconds` in which content is generated: by default some GB


def run_checkpoints(
    job: CheckpointJob, comm: Comm, record: RankRecord[CheckpointJournal], watch: Callable[[], None]
) -> MeasuredLog[CheckpointJournal] | None:
    """Write and read this rank's part of all checkpoints; return the log on rank 0; raises DlemuError.

    `watch` is called after each file.
    """
    storage, folder = open_storage(job.workload.storage_spec.buffered), job.settings.checkpoint_folder
    local = storage.local_path(folder)
    record.start(lambda: storage.device_folders([existing_folder(local)] if local else []))
    rank = _CheckpointRank(job, comm, watch, record)
    try:
        with contextlib.closing(rank.log):
            rank.run()
    except OSError as error:  # while writing a note, deleting or evicting
        path = error.filename or folder
        if error.errno in NO_SPACE:
            raise explained(error, path, 0) from error
        raise UserError(
            f"{path} can't be written, removed or accessed: {error.strerror or error}; see `dmesg` and "
            "what else uses the folder, or set checkpoint.checkpoint_folder to another one"
        ) from error
    record.stop()
    cpu_seconds = time.process_time() - rank.cpu_seconds_before
    return record.collect(rank.log.rows, cpu_seconds=cpu_seconds)


@dataclass(kw_only=True)
class _Part:
    """This rank's part of a checkpoint that it writes or reads."""

    phase: int
    checkpoint: int
    asked_ns: int  # when this rank was ready for the checkpoint, less the time it waited for the one before
    began_ns: int
    released_ns: int = 0  # when training went on
    folder_sync_ns: int = 0
    files: list[Columns] = field(default_factory=list)  # of the files that are complete


class _CheckpointRank:
    """One rank's run."""

    def __init__(
        self, job: CheckpointJob, comm: Comm, watch: Callable[[], None], record: RankRecord[CheckpointJournal]
    ) -> None:
        self._job = job
        self._comm = comm
        self._watch = watch
        self._record = record
        self._storage = open_storage(job.storage_spec)
        self._clock = MonotonicClock()
        self.log = RowLog(IO_DTYPE, job.live_path(rows_path("", comm.rank)))
        self.cpu_seconds_before = 0.0

    def run(self) -> None:
        """Write, then read; raises DlemuError, and OSError for what the storage refuses."""
        settings, spec = self._job.settings, self._job.workload.storage_spec
        self._record.describe(lambda: describe_storage(spec, settings.checkpoint_folder))
        offsets_ns = self._comm.synchronise_clocks()
        if len(offsets_ns) > 1:
            self._record.note(clock_offsets_ns=offsets_ns)
        self._remove_replaced()
        self.cpu_seconds_before = time.process_time()
        if self._job.writes:
            self._write()
        if self._job.sources:
            rank, local_size = self._comm.rank, self._comm.local_size
            files = [self._job.files_to_read(rank, source, local_size) for source in self._job.sources]
            if settings.evict_page_cache:
                self._evict(files)
            reader = CheckpointReader(self._storage, read_pattern(settings), verify=settings.verify)
            with contextlib.closing(reader):
                for source, source_files in zip(self._job.sources, files, strict=True):
                    self._read(reader, source, source_files)

    def _remove_replaced(self) -> None:
        """Remove the checkpoints that this run replaces, as there may be no space for both."""
        if self._comm.rank == 0 and self._job.writes:
            for checkpoint in self._job.replaced:
                remove_checkpoint(self._storage, self._job.folder_of(checkpoint), self._job.plan.names)
            self._storage.remove(self._job.token_path)
        self._barrier()

    def _measure_ceiling(self, buffers: list[memoryview]) -> float | None:
        """Return the rate at which all ranks generate content without writing it, 1e9 bytes/s; None if switched off."""
        seconds = _CEILING_SHARE * self._job.workload.metric.ceiling_seconds
        if seconds <= 0:
            return None
        content = BulkContent(self._job.seed)
        ring = PieceRing([(_ENDLESS_BYTES, lambda buffer, offset: content.fill(buffer, 0, offset))], buffers, 1)
        self._barrier()
        generated_bytes, began = 0, time.monotonic()
        for piece, _ in ring.pieces({"starved_ns": 0}):
            generated_bytes += len(piece)
            if time.monotonic() >= began + seconds:
                break
        elapsed = time.monotonic() - began
        ring.close()
        rates = self._comm.gather(generated_bytes / 1e9 / elapsed)
        return sum(rates) if rates is not None else None

    def _write(self) -> None:
        """Write the checkpoints; ranks also compute after the last asynchronous one, as it drains like the others."""
        settings, files = self._job.settings, self._job.files_to_write(self._comm.rank, 1)
        largest = max((file.size_bytes for file in files), default=0)
        buffers = make_buffers(settings.writers, settings.transfer_size, largest)
        self._record.note(ceiling_gb_per_second=self._measure_ceiling(buffers))
        saving = Saving(settings, self._comm, self._clock, self._job.plan.rank_bytes[self._comm.rank])
        draining: _Part | None = None
        for checkpoint in range(1, self._job.writes + 1):
            self._compute()
            waited_ns = self._end_write(saving, draining) if draining is not None else 0
            writer = self._prepare(checkpoint, buffers)
            writer.wait_ready()
            part = self._begin(WRITE, checkpoint, waited_ns)
            part.released_ns = saving.begin(partial(self._write_files, writer, part))
            if settings.asynchronous:
                draining = part
            else:
                self._end_write(saving, part)
        if draining is not None:
            self._compute()
            self._end_write(saving, draining)

    def _prepare(self, checkpoint: int, buffers: list[memoryview]) -> CheckpointWriter:
        """Make the checkpoint's folder with its note (incomplete), and start generating content."""
        self._record.note(under_way=UnderWay(phase="write", checkpoint=checkpoint))
        if self._comm.rank == 0:
            folder = self._job.folder_of(checkpoint)
            try:
                self._storage.make_folder(folder)
                write_note(self._storage, folder, self._job.note(checkpoint), fsync=True)
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

    def _write_files(self, writer: CheckpointWriter, part: _Part, began_ns: int) -> None:
        part.began_ns = began_ns  # after the snapshot, if asynchronous: the storage has no part in a snapshot
        writer.write(partial(self._add_file, part))
        if self._job.settings.fsync:
            self._sync_folder(part)

    def _sync_folder(self, part: _Part) -> None:
        """Fsync the checkpoint's folder if all other ranks of this host are done: file systems serialise such calls."""
        if os.path.isdir(self._job.live_folder):  # hosts that don't see that folder can't count: each rank syncs
            finished = count_finished(finished_path(self._job.live_folder, self._comm.node))
            if finished < part.checkpoint * self._comm.local_size:
                return
        began_ns, folder = time.monotonic_ns(), self._job.folder_of(part.checkpoint)
        within(self._job.timeout_seconds, lambda: self._storage.sync(folder), f"fsync of the folder {folder}")
        part.folder_sync_ns = time.monotonic_ns() - began_ns

    def _end_write(self, saving: Saving, part: _Part) -> int:
        """Wait until every rank has written its part, mark the checkpoint complete and remove one beyond `keep_last`.

        Return for how many ns training waited for it, if it was asynchronous.
        """
        due_ns = self._barrier()
        ended_ns, waited_ns = saving.wait(), 0
        if self._job.settings.asynchronous:
            waited_ns = self._barrier() - due_ns
        else:
            part.released_ns = ended_ns = self._end_time(ended_ns, due_ns)
        self._add_checkpoint(part, ended_ns, waited_ns)
        self._record.mark()
        checkpoint = part.checkpoint
        removed = max(0, checkpoint - self._job.kept)
        if self._comm.rank == 0:
            note = replace(self._job.note(checkpoint), complete=True)
            write_note(self._storage, self._job.folder_of(checkpoint), note, fsync=True)
            if removed:
                remove_checkpoint(self._storage, self._job.folder_of(removed), self._job.plan.names)
        self._record.note(
            complete=(*self._record.journal.complete, checkpoint), removed=tuple(range(1, removed + 1)), under_way=None
        )
        return waited_ns

    def _evict(self, files: Sequence[Sequence[FileContent]]) -> None:
        """Evict the files that this rank will read from the page cache."""
        self._barrier()
        for file in chain.from_iterable(files):
            with contextlib.suppress(FileNotFoundError):  # reading it reports the error
                check_is_file(self._storage, file.path)
                self._storage.evict(file.path, write_first=True)
        self._barrier()

    def _read(self, reader: CheckpointReader, source: ReadSource, files: Sequence[FileContent]) -> None:
        self._record.note(under_way=UnderWay(phase="read", checkpoint=source.checkpoint))
        self._compute()
        part = self._begin(READ, source.checkpoint)
        reader.read(files, partial(self._add_file, part), content_known=source.content_known)
        ended_ns = time.monotonic_ns()
        part.released_ns = ended_ns = self._end_time(ended_ns, self._barrier())
        self._add_checkpoint(part, ended_ns)
        self._record.mark()
        self._record.note(under_way=None)

    def _compute(self) -> None:
        """Sleep as DLIO computes before each checkpoint."""
        seconds = max(0.0, self._job.settings.time_between_checkpoints)
        self._clock.sleep_until(time.monotonic_ns() + round(seconds * 1e9))

    def _begin(self, phase: int, checkpoint: int, waited_ns: int = 0) -> _Part:
        """Begin a checkpoint once all ranks are ready; `waited_ns` is how long training waited for the one before."""
        self._record.mark()
        asked_ns = time.monotonic_ns() - waited_ns
        return _Part(phase=phase, checkpoint=checkpoint, asked_ns=asked_ns, began_ns=self._barrier())

    def _end_time(self, own_ns: int, all_ns: int) -> int:
        """Return when the checkpoint ended: for this rank, or with `rank_sync` for all ranks."""
        return all_ns if self._job.settings.rank_sync else own_ns

    def _barrier(self) -> int:
        """Wait for all ranks (a barrier); return the time after."""
        self._comm.all_reduce_max(time.monotonic_ns())
        return time.monotonic_ns()

    def _add_file(self, part: _Part, number: int, file: Columns) -> None:
        """Log a file right after its transfer, so that its row survives if the run is killed during the next file."""
        part.files.append(file)
        self.log.add(**self._keys(part), **file, file=number)
        self._watch()

    def _add_checkpoint(self, part: _Part, ended_ns: int, waited_ns: int = 0) -> None:
        """Log this rank's row of the whole checkpoint, summed over its files."""
        self.log.add(
            **self._keys(part),
            **{name: sum(file[name] for file in part.files) for name in _SUMMED},
            file=WHOLE,
            threads=max((file["threads"] for file in part.files), default=0),
            asked_ns=part.asked_ns,
            started_ns=part.began_ns,
            released_ns=part.released_ns,
            waited_ns=waited_ns,
            ended_ns=ended_ns,
            fsync_ns=sum(file["synced_ns"] - file["moved_ns"] for file in part.files) + part.folder_sync_ns,
            folder_sync_ns=part.folder_sync_ns,
        )

    def _keys(self, part: _Part) -> Columns:
        return {
            "rank": self._comm.rank,
            "phase": part.phase,
            "checkpoint": part.checkpoint,
            "began_ns": part.began_ns,
        }
