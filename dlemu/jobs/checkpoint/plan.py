"""The plan of a checkpoint run: everything a rank needs, made and checked once on rank 0, then sent to all ranks.

Everything is checked before the first byte is written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from datagen.withheld import public_text
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, plan_checkpoint
from dlemu.checkpoints.file_content import FileContent, files_of
from dlemu.checkpoints.stored import StoredNote, files_in, folder_of, is_link, read_note, stored_checkpoints
from dlemu.config.schema import Checkpoint, Workload
from dlemu.machine.cgroup_limits import host_memory
from dlemu.ranks.process_control import comes_into_sight
from dlemu.report.units import size
from dlemu.results.wording import count
from dlemu.runner.run_folder import Job

_RANK_BYTES = 300 << 20  # upper bound of a rank's own memory, whatever the model's size
MLPERF_CHECKPOINTS = 10  # checkpoints that MLPerf Storage writes and reads (Rules v2.0, 2.2.3)


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """A checkpoint to be read, as it was written."""

    checkpoint: int
    settings: Checkpoint
    seed: int
    content_known: bool  # dlemu wrote the checkpoint, so that its content can be checked


@dataclass(frozen=True, kw_only=True)
class CheckpointJob(Job):
    """The complete description of a checkpoint run; `seed` determines the content it writes."""

    plan: CheckpointPlan
    replaced: tuple[int, ...] = ()  # checkpoints of an earlier run, to be removed first
    sources: tuple[ReadSource, ...] = ()  # checkpoints to read, in order
    notes: tuple[str, ...] = ()  # sentences that a reader of the result must know

    @property
    def settings(self) -> Checkpoint:
        return self.workload.checkpoint

    @property
    def writes(self) -> int:
        return max(0, self.settings.num_checkpoints_write)

    @property
    def token_path(self) -> str:
        """Path of an empty file that rank 0 leaves before it writes: a host that sees it shares the folder."""
        return f"{self.settings.checkpoint_folder.rstrip('/')}/.dlemu-shared-{self.seed:012x}"

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage, with O_DIRECT for reads and writes if `checkpoint.odirect` is set."""
        direct = self.settings.odirect
        return replace(super().storage_spec, direct=direct, direct_writes=direct)

    @property
    def kept(self) -> int:
        """Number of complete checkpoints left in the folder at the end."""
        return min(self.writes, self.settings.keep_last or self.writes)

    @property
    def timeout_seconds(self) -> float:
        """Timeout of an fsync, and of waiting for other ranks: below 10 MB/s a rank is taken to hang."""
        return max(self.workload.timeout_seconds, self.plan.sizes.largest_rank_bytes / 10e6)

    def folder_of(self, checkpoint: int) -> str:
        return folder_of(self.settings.checkpoint_folder, checkpoint)

    def note(self, checkpoint: int) -> StoredNote:
        """Return the note of a checkpoint of this run, marked incomplete."""
        return StoredNote(
            seed=self.seed,
            checkpoint=checkpoint,
            ranks=self.ranks,
            bytes=self.plan.sizes.bytes,
            model=self.workload.model,
            settings=replace(self.settings, checkpoint_folder=public_text(self.settings.checkpoint_folder)),
        )

    def files_to_write(self, rank: int, checkpoint: int) -> list[FileContent]:
        """Return the files that a rank of the run writes of a checkpoint, in order."""
        source = ReadSource(checkpoint=checkpoint, settings=self.settings, seed=self.seed, content_known=True)
        return self._files(self.plan.ranks[rank], source)

    def files_to_read(self, rank: int, source: ReadSource, ranks_per_host: int) -> list[FileContent]:
        """Return the files that a rank of the run reads: its own, or another host's rank's."""
        shift = ranks_per_host if self.settings.recovery_rank_shift else 0
        return self._files(self.plan.ranks[(rank + shift) % self.ranks], source)

    def _files(self, writer: int, source: ReadSource) -> list[FileContent]:
        """Return what a rank of the emulated job wrote, or writes, of a checkpoint."""
        folder, number = self.folder_of(source.checkpoint), source.checkpoint
        layouts = self.plan.files(writer)
        return files_of(folder, layouts, source.settings, source.seed, checkpoint=number, rank=writer)


def with_checkpoints(workload: Workload) -> Workload:
    """Return the workload, with MLPerf Storage's number of checkpoints if it sets none."""
    settings = workload.checkpoint
    if max(settings.num_checkpoints_write, settings.num_checkpoints_read) >= 0:
        return workload
    changed = replace(settings, num_checkpoints_write=MLPERF_CHECKPOINTS, num_checkpoints_read=MLPERF_CHECKPOINTS)
    return replace(workload, checkpoint=changed)


def plan_checkpoints(workload: Workload, ranks: int) -> CheckpointJob:
    """Plan a run, given the checkpoints that are in the folder already; changes nothing. Raises UserError."""
    settings = workload.checkpoint
    storage = open_storage(workload.storage_spec.buffered)
    job = CheckpointJob(
        workload=workload,
        ranks=ranks,
        plan=plan_checkpoint(workload.model, settings, ranks),
        seed=secrets.randbits(48),  # below 2^53: exact also where JSON numbers are read as doubles
    )
    if not job.plan.sizes.bytes:
        raise UserError(
            "a checkpoint of this model is empty: wanted a workload with model.num_layers and model.transformer, "
            "such as workload=llama3_8b; or model.model_size_bytes without model.type=transformer"
        )
    if replaced := _checked_replaced(job, storage):
        deleted = count(len(replaced), "checkpoint")
        note = f"deleted {deleted} of an earlier run of the same kind to make room in {settings.checkpoint_folder}"
        job = replace(job, replaced=tuple(replaced), notes=(note,))
    return replace(job, sources=tuple(_sources(job, storage)))


def check_checkpoint_host(job: CheckpointJob, local_ranks: int) -> None:
    """Raise SpaceError or UserError if this host lacks memory or disk space for its ranks, or can't see the folder."""
    settings = job.settings
    storage = open_storage(job.storage_spec)
    folder = settings.checkpoint_folder.rstrip("/")
    if job.writes and not _sees(storage, job.token_path):
        raise UserError(
            f"checkpoint.checkpoint_folder is {folder}, which this host does not share with rank 0: wanted a folder "
            "that all hosts see; for drives of each host start a run on each: ranks=RANKS_OF_A_HOST "
            "checkpoint.job_ranks=RANKS_OF_THE_JOB checkpoint.first_rank=FIRST_OF_THIS_HOST"
        )
    if settings.recovery_rank_shift and job.sources and local_ranks >= job.ranks:
        raise UserError(
            "checkpoint.recovery_rank_shift is true: each rank would read what another host's rank wrote, but there is "
            "only one host; wanted ranks on two or more"
        )
    needed_bytes, available_bytes = local_ranks * _RANK_BYTES, host_memory().available_bytes
    if needed_bytes > available_bytes:
        advice = "run fewer ranks on it" if local_ranks > 1 else "use a larger host"
        raise SpaceError(
            f"the buffers of {count(local_ranks, 'rank')} need {size(needed_bytes)} of memory on this host, and "
            f"{size(available_bytes)} are available: {advice}"
        )
    _check_room(job, storage)


def _check_room(job: CheckpointJob, storage: StorageBase) -> None:
    """Raise SpaceError if the checkpoints stored at a time do not fit, once those that are replaced are removed."""
    free_bytes = storage.free_bytes(job.settings.checkpoint_folder) if job.writes else None
    if free_bytes is None:
        return
    paths = [f"{folder}/{name}" for folder in map(job.folder_of, job.replaced) for name in files_in(storage, folder)]
    free_bytes += sum(size_bytes or 0 for size_bytes in storage.sizes(paths))
    each_bytes = job.plan.sizes.bytes
    at_a_time = min(job.writes, job.kept + 1)
    if each_bytes * at_a_time > free_bytes:
        raise SpaceError(
            f"{count(at_a_time, 'checkpoint')} of {size(each_bytes)} need {size(each_bytes * at_a_time)} in "
            f"{job.settings.checkpoint_folder}, and {size(free_bytes)} are free there: set "
            f"checkpoint.keep_last (each new one needs room besides those kept), write fewer "
            "(checkpoint.num_checkpoints_write), or use a larger drive"
        )


def _checked_replaced(job: CheckpointJob, storage: StorageBase) -> list[int]:
    """Return the checkpoints that the job replaces; UserError for a link, or one of another kind of run or tool."""
    stored = stored_checkpoints(storage, job.settings.checkpoint_folder)
    numbers = [number for number in stored if number <= job.writes]
    for number in numbers:
        folder, new_note = job.folder_of(number), job.note(number)
        if is_link(storage, folder):
            raise UserError(
                f"{folder} is a link, and this run would replace what it points to: set checkpoint.checkpoint_folder "
                "to another folder, or remove the link"
            )
        note, names, other = read_note(storage, folder), list(files_in(storage, folder)), ""
        if note is None and names:
            other = f"files that dlemu did not write ({', '.join(names[:3])})"
        elif note is not None and _kind(note) != _kind(new_note):
            other = note.description
        if other:
            raise UserError(
                f"{folder} holds the checkpoint of another run: {other}; wanted {new_note.description}: set "
                "checkpoint.checkpoint_folder to another folder, or delete that one"
            )
    return numbers


def _kind(note: StoredNote) -> tuple[object, ...]:
    """Return what two runs have in common if one may replace the other's checkpoints."""
    settings = note.settings
    ranks = (note.ranks, settings.mode, settings.job_ranks, settings.first_rank, settings.type)
    return note.model, settings.format, *ranks


def _sources(job: CheckpointJob, storage: StorageBase) -> Iterator[ReadSource]:
    """Yield the checkpoints to read, the oldest first: those that this run keeps, or if it writes none, stored ones."""
    settings, reads = job.settings, job.settings.num_checkpoints_read
    if reads < 1:
        return
    if job.writes:
        numbers = list(range(job.writes - job.kept + 1, job.writes + 1))
        available = f"this run keeps {len(numbers)}"
    else:
        numbers = stored_checkpoints(storage, settings.checkpoint_folder)
        available = f"{settings.checkpoint_folder} holds {len(numbers)}"
    if len(numbers) < reads:
        raise UserError(
            f"checkpoint.num_checkpoints_read is {reads}, but {available}: wanted at most as many; "
            "checkpoint.num_checkpoints_write and checkpoint.keep_last say how many there are"
        )
    for number in numbers[:reads]:
        if job.writes:
            yield ReadSource(checkpoint=number, settings=settings, seed=job.seed, content_known=True)
        else:
            yield _stored_source(job, storage, number)


def _stored_source(job: CheckpointJob, storage: StorageBase, number: int) -> ReadSource:
    folder = folder_of(job.settings.checkpoint_folder, number)
    note = read_note(storage, folder)
    if note is None:
        return ReadSource(checkpoint=number, settings=job.settings, seed=0, content_known=False)
    if not note.complete:
        raise UserError(
            f"{folder} is not complete: its run ended before all ranks were done; delete it, or write it again"
        )
    if not _is_readable(job, note):
        raise UserError(
            f"{folder} holds the checkpoint of another run: {note.description}; wanted "
            f"{job.note(number).description}: read it with the settings that wrote it, if you trust them"
        )
    return ReadSource(checkpoint=number, settings=note.settings, seed=note.seed, content_known=True)


def _is_readable(job: CheckpointJob, note: StoredNote) -> bool:
    """Return whether the job's ranks can read that checkpoint. Its format is not imported: that could run any code."""
    if (note.model, note.settings.format) != (job.workload.model, job.settings.format):
        return False
    plan = plan_checkpoint(note.model, note.settings, note.ranks)
    return plan.grid == job.plan.grid and set(job.plan.ranks) <= set(plan.ranks)


def _sees(storage: StorageBase, path: str) -> bool:
    folder, name = os.path.split(path)

    def is_listed() -> bool:
        with contextlib.suppress(OSError), storage.entries(folder) as entries:
            return any(entry.name == name for entry in entries)
        return False

    return comes_into_sight(is_listed)
