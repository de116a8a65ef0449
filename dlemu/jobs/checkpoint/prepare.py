"""From a configuration to the plan of a checkpoint run; everything is checked before the first byte is written."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace

from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.stored import StoredNote, files_in, folder_of, is_link, read_note, stored_checkpoints
from dlemu.config.schema import Workload
from dlemu.jobs.checkpoint.plan import CheckpointJob, ReadSource
from dlemu.machine.cgroup_limits import host_memory
from dlemu.ranks.process_control import comes_into_sight
from dlemu.report.units import size
from dlemu.results.wording import count

_RANK_BYTES = 300 << 20  # upper bound of a rank's own memory, whatever the model's size
MLPERF_CHECKPOINTS = 10  # checkpoints that MLPerf Storage writes and reads (Rules v2.0, 2.2.3)


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
