"""Datasets made and verified with all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from datagen import manifest
from datagen.errors import DatasetError
from datagen.generate import finish, generate
from datagen.generate import prepare as prepare_folder
from datagen.storage.storage_base import open_storage
from datagen.thread_pool import Progress
from datagen.verify import verify
from datagen.withheld import public_text
from dlemu.comm import Comm
from dlemu.config import check_data
from dlemu.config.schema import Workload
from dlemu.run.enough import ENOUGH_STEPS, can_be_judged, enough, steps_of
from dlemu.run.events import DatasetMade, DatasetProgress, DatasetVerified, Event, Frontend, Warned
from dlemu.run.ranks import ForkedRanks, Ranks, with_ranks

Tell = Callable[[Event], None]


def make(frontend: Frontend, *, fsync: bool = False) -> None:
    """Make what is missing of a dataset; raises UserError, RunFailedError."""

    def body(ranks: Ranks) -> None:
        workload = ranks.configure(lambda: _checked(frontend))
        files = workload.dataset.num_files_train
        if ranks.leads and not can_be_judged(workload, steps_of(workload, ranks.count, files)):
            frontend.tell(Warned(_too_small(workload, ranks.count)))
        ranks.run(lambda comm: make_dataset(workload, comm, frontend.tell, fsync=fsync))

    with_ranks(frontend, body)


def make_on_this_host(workload: Workload, ranks: int, tell: Tell, *, fsync: bool = False) -> None:
    """Make what is missing of a dataset with so many forked ranks; raises UserError, RunFailedError."""
    check_data(workload)
    forked = ForkedRanks(ranks, workload.timeout_seconds)
    forked.run(lambda comm: make_dataset(workload, comm, tell, fsync=fsync))


def check_bytes(frontend: Frontend) -> None:
    """Compare every byte of a dataset with what was generated; raises UserError, RunFailedError when some are wrong."""

    def body(ranks: Ranks) -> None:
        workload = ranks.configure(lambda: _checked(frontend))
        ranks.run(lambda comm: verify_dataset(workload, comm, frontend.tell))

    with_ranks(frontend, body)


def _too_small(workload: Workload, ranks: int) -> str:
    need = enough(workload, ranks)
    return (
        f"{workload.dataset.num_files_train:,} files are too few for a verdict on {ranks} rank{'s' * (ranks != 1)}: "
        f"wanted dataset.num_files_train={need.files} or more, {need.bytes / 1e9:,.1f} GB, for {ENOUGH_STEPS} steps an "
        "epoch; what is made now can't be added to"
    )


def _checked(frontend: Frontend) -> Workload:
    workload = frontend.load()
    check_data(workload)
    return workload


def make_dataset(workload: Workload, comm: Comm, tell: Tell, *, fsync: bool = False) -> None:
    """Make this rank's share of what is missing; raises UserError."""
    spec, storage = workload.dataset, workload.storage_spec
    if comm.rank == 0:
        prepare_folder(spec, storage)
    comm.broadcast(None)
    progress = _progress(comm, "made", tell)
    made = generate(
        spec, storage, rank=comm.rank, ranks=comm.size, threads=_threads(comm), fsync=fsync, progress=progress
    )
    parts = comm.gather(made)
    if parts is not None:
        finish(spec, storage)
        tell(
            DatasetMade(
                folder=public_text(spec.data_folder),
                files=sum(part.files for part in parts),
                bytes=sum(part.bytes for part in parts),
                kept_files=sum(part.kept_files for part in parts),
                seconds=max(part.seconds for part in parts),
            )
        )


def verify_dataset(workload: Workload, comm: Comm, tell: Tell) -> None:
    """Compare this rank's share of the bytes; rank 0 tells all findings.

    Raises DatasetError when one is an error: files of others, which no run reads, are none.
    """
    spec = workload.dataset
    progress = _progress(comm, "verified", tell)
    found = verify(
        spec, workload.storage_spec, rank=comm.rank, ranks=comm.size, threads=_threads(comm), progress=progress
    )
    parts = comm.gather(found)
    if parts is None:
        return
    findings = tuple(finding for part in parts for finding in part)
    made = manifest.read(spec.data_folder, open_storage(workload.storage_spec.buffered))
    whole = spec if made is None else made.spec  # all that was made is verified, however many are asked for
    files = whole.num_files_train + whole.num_files_eval
    tell(DatasetVerified(folder=public_text(spec.data_folder), files=files, findings=findings))
    wrong = sum(finding.severity == "error" for finding in findings)
    if wrong:
        raise DatasetError(
            f"{wrong} of {files} files in {spec.data_folder} are wrong; delete those named as errors above, and run "
            "`dlemu datagen` with the same settings to make them again"
        )


def _progress(comm: Comm, verb: Literal["made", "verified"], tell: Tell) -> Callable[[Progress], None] | None:
    """Return what reports the progress of rank 0, None on the others."""
    if comm.rank != 0:
        return None
    return lambda done: tell(DatasetProgress(verb=verb, ranks=comm.size, done=done))


def _threads(comm: Comm) -> int:
    """Return this rank's share of the cores it may use."""
    return max(1, len(os.sched_getaffinity(0)) // comm.local_size)
