"""Generates and verifies datasets with all ranks: whole commands first, then what each of their ranks does."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain

from datagen import manifest
from datagen.errors import DatasetError, UserError
from datagen.generate import finish, generate
from datagen.generate import prepare as prepare_folder
from datagen.layout import stored_sample_bytes
from datagen.storage.storage_base import open_storage
from datagen.thread_pool import Progress as RankProgress
from datagen.verify import verify
from datagen.withheld import redact_urls
from dlemu.config import check_data
from dlemu.config.schema import Workload
from dlemu.ranks import Comm
from dlemu.ranks.process_control import becomes_visible
from dlemu.results.live import Progress, seconds_left
from dlemu.results.wording import count
from dlemu.runner.events import DatasetMade, DatasetVerified, OnEvent, Warned
from dlemu.runner.job import JobRequest
from dlemu.runner.ranks import OnTick, Ranks, with_ranks


def run_datagen(
    request: JobRequest,
    on_event: OnEvent,
    *,
    warning_for: Callable[[Workload, int], str] = lambda workload, ranks: "",
    fsync: bool = False,
    on_tick: OnTick = lambda: None,
) -> DatasetMade | None:
    """Make the missing files of a dataset; return a summary on rank 0's host. Raises UserError, RunFailedError.

    Before any file is made, `warning_for(workload, ranks)` returns a warning for the user, or an empty text.
    """

    def body(ranks: Ranks) -> DatasetMade | None:
        workload = ranks.configure(lambda: _checked(request))
        if ranks.leads and (warning := warning_for(workload, ranks.count)):
            on_event(Warned(warning))
        return ranks.run(
            lambda comm: make_share(workload, comm, on_event, fsync=fsync), _timeout(workload, ranks.count)
        )

    return with_ranks(request.overrides, on_event, body, on_tick)


def make_on_this_host(workload: Workload, ranks: int, on_event: OnEvent) -> None:
    """Make and fsync the missing files of a dataset with `ranks` forked here; raises UserError, RunFailedError."""
    check_data(workload)
    Ranks(ranks, _timeout(workload, ranks)).run(lambda comm: make_share(workload, comm, on_event, fsync=True))


def run_verify(request: JobRequest, on_event: OnEvent) -> None:
    """Compare every byte of a dataset with what was generated; raises UserError, or RunFailedError for wrong files."""

    def body(ranks: Ranks) -> None:
        workload = ranks.configure(lambda: _checked(request))
        ranks.run(lambda comm: verify_share(workload, comm, on_event), _timeout(workload, ranks.count))

    with_ranks(request.overrides, on_event, body)


def _timeout(workload: Workload, ranks: int) -> float:
    """Return the timeout of waiting for other ranks, s; a rank that makes less than 10 MB/s counts as hanging."""
    data = workload.dataset
    samples = (data.num_files_train + data.num_files_eval) * data.num_samples_per_file
    return max(workload.timeout_seconds, samples * stored_sample_bytes(data) / ranks / 10e6)


def _checked(request: JobRequest) -> Workload:
    workload = request.load()
    check_data(workload)
    return workload


def make_share(workload: Workload, comm: Comm, on_event: OnEvent, *, fsync: bool = False) -> DatasetMade | None:
    """Make this rank's share of the missing files; on rank 0, return a summary of all ranks. Raises UserError."""
    spec, storage = workload.dataset, workload.storage_spec
    rank_0s_manifest = None
    if comm.rank == 0:
        prepare_folder(spec, storage)
        rank_0s_manifest = manifest.read(spec.data_folder, open_storage(storage.buffered))
    rank_0s_manifest = comm.broadcast(rank_0s_manifest)
    if comm.node > 0 and comm.local_rank == 0:
        _check_shared(workload, rank_0s_manifest)
    comm.all_reduce_max(0)  # a barrier: no rank writes before all hosts have passed the check
    progress = _progress(comm, "in place", on_event)
    share = generate(
        spec, storage, rank=comm.rank, ranks=comm.size, threads=_threads(comm), fsync=fsync, progress=progress
    )
    shares = comm.gather(share)
    if shares is None:
        return None
    finish(spec, storage)
    total = DatasetMade(
        folder=redact_urls(spec.data_folder),
        files=sum(share.files for share in shares),
        bytes=sum(share.bytes for share in shares),
        kept_files=sum(share.kept_files for share in shares),
        seconds=max(share.seconds for share in shares),
    )
    on_event(total)
    return total


def _check_shared(workload: Workload, rank_0s_manifest: manifest.Manifest | None) -> None:
    """Raise UserError on a host whose data folder has neither rank 0's manifest nor a complete copy of the dataset."""
    spec, storage = workload.dataset, open_storage(workload.storage_spec.buffered)

    def is_shared() -> bool:
        existing = manifest.read(spec.data_folder, storage)
        is_copy = existing is not None and existing.complete and not manifest.differing_keys(existing.spec, spec)
        return is_copy or existing == rank_0s_manifest

    if not becomes_visible(is_shared):
        raise UserError(
            f"dataset.data_folder is {redact_urls(spec.data_folder)}, which this host does not share with rank 0: "
            "wanted a folder on storage that all hosts mount"
        )


def verify_share(workload: Workload, comm: Comm, on_event: OnEvent) -> None:
    """Compare this rank's share of the bytes; rank 0 reports all findings. Raises DatasetError if there are any."""
    spec = workload.dataset
    progress = _progress(comm, "verified", on_event)
    rank_findings = verify(
        spec, workload.storage_spec, rank=comm.rank, ranks=comm.size, threads=_threads(comm), progress=progress
    )
    findings_by_rank = comm.gather(rank_findings)
    if findings_by_rank is None:
        return
    findings = tuple(chain.from_iterable(findings_by_rank))
    existing = manifest.read(spec.data_folder, open_storage(workload.storage_spec.buffered))
    if existing is not None:
        spec = existing.spec  # `verify` checks all existing files, even if the settings have fewer
    files = spec.num_files_train + spec.num_files_eval
    on_event(DatasetVerified(folder=redact_urls(spec.data_folder), files=files, findings=findings))
    if findings:
        raise DatasetError(
            f"{len(findings)} of {files} files in {spec.data_folder} are wrong; delete those named above, and run "
            "`dlemu datagen` with the same settings to make them again"
        )


def _progress(comm: Comm, state: str, on_event: OnEvent) -> Callable[[RankProgress], None] | None:
    """Return a function that reports rank 0's progress, with files in a `state` such as "verified"; None elsewhere."""
    if comm.rank != 0:
        return None
    first: RankProgress | None = None  # counts the files that existed before; the rate leaves them out

    def report(current: RankProgress) -> None:
        nonlocal first
        first = first or current
        seconds = current.seconds - first.seconds
        new_bytes = current.bytes - first.bytes
        prefix = f"rank 0 of {comm.size}: " if comm.size > 1 else ""
        is_last = current.files >= current.total_files
        progress = Progress(
            at=f"{prefix}{count(current.files, 'file')} {state}",
            done=current.bytes,
            # `total_bytes` is an estimate. If it was too low, the progress stays below 100 % until the last file.
            total=max(current.total_bytes, current.bytes if is_last else current.bytes + 1),
            mb_per_second=new_bytes / 1e6 / seconds if new_bytes and seconds else None,
            seconds_left=seconds_left(seconds, new_bytes, current.total_bytes - first.bytes),
        )
        on_event(progress)

    return report


def _threads(comm: Comm) -> int:
    return max(1, len(os.sched_getaffinity(0)) // comm.local_size)
