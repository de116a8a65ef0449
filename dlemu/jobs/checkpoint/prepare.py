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

_RANK_BYTES = 300 << 20
"""Upper bound of a rank's own memory, whatever the model's size."""
MLPERF_CHECKPOINTS = 10
"""Number of checkpoints that MLPerf Storage writes and reads (Rules v2.0, 2.2.3)."""


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
    stored = stored_checkpoints(storage, settings.checkpoint_folder)
    job = CheckpointJob(
        workload=workload,
        ranks=ranks,
        plan=plan_checkpoint(workload.model, settings, ranks),
        seed=secrets.randbits(48),  # below 2^53: exact also where JSON numbers are read as doubles
    )
    if not job.plan.sizes.bytes:
        given = workload.model.model_size_bytes  # transformers consist of their layers alone
        instead = f"leave out model.type={workload.model.type}" if given else "give model.model_size_bytes"
        raise UserError(
            "a checkpoint of this model is empty: wanted a workload with model.num_layers and model.transformer, "
            f"such as workload=llama3_8b; or {instead}"
        )
    replaced = _replaced(job, stored)
    for number in replaced:
        _check_same_kind(job, storage, number)
    if replaced:
        gone = count(len(replaced), "checkpoint")
        note = f"deleted {gone} of an earlier run of the same kind to make room in {settings.checkpoint_folder}"
        job = replace(job, replaced=replaced, notes=(*job.notes, note))
    return replace(job, sources=tuple(_sources(job, storage, stored)))


def check_checkpoint_host(job: CheckpointJob, local_ranks: int) -> None:
    """Raise SpaceError or UserError if this host lacks memory or disk space for its ranks, or can't see the folder."""
    settings = job.settings
    storage = open_storage(job.storage_spec)
    folder = settings.checkpoint_folder.rstrip("/")
    if job.writes and not settings.node_local and not _sees(storage, job.token_path):
        raise UserError(
            f"checkpoint.checkpoint_folder is {folder}, which this host does not share with rank 0: wanted a folder "
            "that all hosts see, or checkpoint.node_local=true if each host has its own drives"
        )
    if settings.recovery_rank_shift and job.sources and (local_ranks >= job.ranks or settings.node_local):
        raise UserError(
            "checkpoint.recovery_rank_shift is true: each rank would read what another host's rank wrote, but there is "
            "only one host, or one folder per host; wanted ranks on two or more hosts and a folder that they share"
        )
    wanted, available = local_ranks * _RANK_BYTES, host_memory().available_bytes
    if wanted > available:
        raise SpaceError(
            f"the buffers of {count(local_ranks, 'rank')} need {size(wanted)} of memory on this host, and "
            f"{size(available)} are available: {'run fewer ranks on it' if local_ranks > 1 else 'use a larger host'}"
        )
    job = with_replaced_here(job, storage)
    for number in job.replaced:
        _check_same_kind(job, storage, number)
    _check_room(job, storage, local_ranks)
    if settings.node_local and job.writes:  # last: a run that this host refuses leaves nothing on its drive
        storage.make_folder(folder)


def with_replaced_here(job: CheckpointJob, storage: StorageBase) -> CheckpointJob:
    """Return the job with what it replaces on this host: with `node_local`, each host has checkpoints of its own."""
    if not job.settings.node_local:
        return job
    return replace(job, replaced=_replaced(job, stored_checkpoints(storage, job.settings.checkpoint_folder)))


def _replaced(job: CheckpointJob, stored: list[int]) -> tuple[int, ...]:
    return tuple(number for number in stored if number <= job.writes)


def _check_room(job: CheckpointJob, storage: StorageBase, local_ranks: int) -> None:
    """Raise SpaceError if the checkpoints kept at a time do not fit, counting space freed by replaced ones."""
    if not job.writes:
        return
    free = storage.free_bytes(job.settings.checkpoint_folder)
    if free is None:
        return
    each = job.plan.sizes.largest_rank_bytes * local_ranks if job.settings.node_local else job.plan.sizes.bytes
    at_most = min(job.writes, job.kept + 1)
    folders = map(job.folder_of, job.replaced)
    stored = [f"{folder}/{name}" for folder in folders for name in files_in(storage, folder)]
    given_back = sum(size_bytes or 0 for size_bytes in storage.sizes(stored))
    if each * at_most > free + given_back:
        raise SpaceError(
            f"{count(at_most, 'checkpoint')} of {size(each)} need {size(each * at_most)} in "
            f"{job.settings.checkpoint_folder}, and {size(free + given_back)} are free there: set "
            f"checkpoint.keep_last (each new one needs room besides those kept), write fewer "
            "(checkpoint.num_checkpoints_write), or use a larger drive"
        )


def _check_same_kind(job: CheckpointJob, storage: StorageBase, number: int) -> None:
    """Raise UserError if a folder to be replaced holds another kind of checkpoint, or files not written by dlemu."""
    folder = job.folder_of(number)
    if is_link(storage, folder):
        raise UserError(
            f"{folder} is a link, and this run would replace what it points to: set checkpoint.checkpoint_folder to "
            "another folder, or remove the link"
        )
    note, wanted, found = read_note(storage, folder), job.note(number, 1), list(files_in(storage, folder))
    if found and note is None:
        other = f"files that dlemu did not write ({', '.join(found[:3])})"
    elif note is not None and _kind(note) != _kind(wanted):
        other = note.description
    else:
        return
    raise UserError(
        f"{folder} holds the checkpoint of another run: {other}; wanted {wanted.description}: set "
        "checkpoint.checkpoint_folder to another folder, or delete that one"
    )


def _kind(note: StoredNote) -> object:
    settings = note.settings
    place = (settings.mode, settings.job_ranks, settings.first_rank, settings.type)
    return note.model, note.ranks, settings.format, place


def _sources(job: CheckpointJob, storage: StorageBase, stored: list[int]) -> Iterator[ReadSource]:
    """Yield the checkpoints to read, the oldest first: those that this run keeps, or if it writes none, stored ones."""
    settings = job.settings
    wanted = max(0, settings.num_checkpoints_read)
    if not wanted:
        return
    numbers = list(range(job.writes - job.kept + 1, job.writes + 1)) if job.writes else stored
    if len(numbers) < wanted:
        what = f"this run keeps {len(numbers)}" if job.writes else f"{settings.checkpoint_folder} holds {len(numbers)}"
        more = [f"checkpoint.num_checkpoints_write={wanted}"] * (job.writes < wanted)
        more += [f"checkpoint.keep_last={wanted}"] * (0 < settings.keep_last < wanted)
        raise UserError(
            f"checkpoint.num_checkpoints_read is {wanted}, but {what}: wanted at most as many, or {' and '.join(more)}"
        )
    for number in numbers[:wanted]:
        if job.writes:
            yield ReadSource(checkpoint=number, settings=settings, seed=job.seed, known=True)
        else:
            yield _stored_source(job, storage, number)


def _stored_source(job: CheckpointJob, storage: StorageBase, number: int) -> ReadSource:
    folder = folder_of(job.settings.checkpoint_folder, number)
    note = read_note(storage, folder)
    if note is None:
        return ReadSource(checkpoint=number, settings=job.settings, seed=0, known=False)
    if not note.complete:
        raise UserError(
            f"{folder} is not complete: its run ended before all ranks were done; delete it, or write it again"
        )
    if not _is_readable(job, note):
        raise UserError(
            f"{folder} holds the checkpoint of another run: {note.description}; wanted "
            f"{job.note(number, 1).description}: read it with the settings that wrote it, if you trust them"
        )
    return ReadSource(checkpoint=number, settings=note.settings, seed=note.seed, known=True)


def _is_readable(job: CheckpointJob, note: StoredNote) -> bool:
    """Return whether the job's ranks read files of such a checkpoint. A user's module as its format is not imported."""
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
