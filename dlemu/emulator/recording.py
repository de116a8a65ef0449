"""Which rank has its host's recorder, and what that recorder looks at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from datagen.inspection import Dataset
from datagen.storage.storage_base import open_storage
from dlemu.comm import Comm, within
from dlemu.comm.cgroup_limits import limiting_groups
from dlemu.config.schema import Telemetry
from dlemu.emulator.job import Job
from dlemu.telemetry import Recorder, Scope, Task, start_recorder

_MOST_FOLDERS = 64
"""Folders of files that are looked at: any may be a mount of its own, but there can be thousands."""


def recorder_of(job: Job, comm: Comm) -> Recorder | None:
    """Start this host's recorder of a training run on its first rank; None elsewhere. Collective."""
    storage = open_storage(job.workload.storage_spec.buffered)
    return recorder_for(
        job.workload.telemetry,
        lambda: storage.device_folders(_dataset_folders(job.found)),
        job.live_folder,
        comm,
        timeout_seconds=job.workload.timeout_seconds,
        what=job.workload.dataset.data_folder,
        request_folder=job.request_folder if storage.is_remote else "",
    )


def recorder_for(
    settings: Telemetry,
    folders: Callable[[], Iterator[str]],
    live_folder: str,
    comm: Comm,
    *,
    timeout_seconds: float,
    what: str,
    request_folder: str = "",
) -> Recorder | None:
    """Start this host's recorder on its first rank; None on the others, and when telemetry is off. Collective.

    `folders` are looked for where the recorder is started: those whose devices it watches; `what` names them.
    In `request_folder` processes count their requests to an object store.
    """
    if not settings.enabled:
        return None
    told = comm.broadcast(comm.gather((comm.node, os.getpid())))
    if comm.local_rank != 0:
        return None
    ranks = {rank: process for rank, (node, process) in enumerate(told) if node == comm.node}
    scope = Scope(
        folders=within(timeout_seconds, lambda: tuple(folders()), f"looking for the devices of {what}"),
        ranks=ranks,
        block_trace=settings.block_trace,
        cpu_groups=limiting_groups(),
        request_folder=request_folder,
    )
    task = Task(scope=scope, node=comm.node, interval_seconds=settings.interval_seconds)
    return start_recorder(task, live_folder)


def _dataset_folders(found: Dataset) -> Iterator[str]:
    for layout in (found.train, found.valid):
        yield from layout.folders()[:_MOST_FOLDERS] if layout is not None else ()
