"""Checks before a training run starts, or makes its dataset: samples, memory, address space, open files, rights."""

from __future__ import annotations

import resource

import psutil

from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import open_storage
from dlemu.comm.cgroup_limits import host_memory
from dlemu.config.schema import Workload
from dlemu.jobs.training.enough import refuse_unjudged
from dlemu.jobs.training.plan import TrainingJob, accelerator_class, loader_class, make_job, planned_dataset

_FILES_PER_WORKER = 6
"""File descriptors of a rank for each worker (queues, pipes, sentinel), measured with PyTorch 2.13."""
_FILES_PER_RANK = 64
"""File descriptors of a rank apart from its workers': logs, sockets to other ranks, files that libraries open."""
_SAVING_BYTES = 256 << 20
"""Free address space needed for writing the results; with less, the libraries that write them abort the process."""


def check_before_making(workload: Workload, ranks: int, *, wants_verdict: bool = False) -> None:
    """Raise UserError where the run would fail on the finished dataset: too few samples, no framework, bad settings."""
    if workload.workflow.checkpoint:
        from dlemu.checkpoints.checkpoint_plan import plan_checkpoint  # most runs save no checkpoints

        plan_checkpoint(workload.model, workload.checkpoint, ranks)  # refuses ranks that can't share the model
    if wants_verdict:
        refuse_unjudged(workload, ranks, workload.dataset.num_files_train, files_there=0)
    make_job(workload, ranks, planned_dataset(workload.dataset), folder=workload.output.folder, started_at="")
    loader_class(workload)


def check_host(job: TrainingJob, local_ranks: int) -> None:
    """Raise SpaceError when this host's limits are too low for its ranks, UserError when a setting can't work on it."""
    _check_evictable(job)
    accelerator_class(job.workload).check_host(job.accelerator_spec(0))
    _check_files(job)
    _check_memory(job, local_ranks)
    _check_address_space(job)


def _check_evictable(job: TrainingJob) -> None:
    """Raise UserError where eviction is requested but the files are in memory (tmpfs), so that it can't work."""
    when, folder = job.workload.reader.evict_page_cache, job.workload.dataset.data_folder
    if when == "never":
        return
    kind = open_storage(job.workload.storage_spec.buffered).memory_kind(folder)
    if kind:
        raise UserError(
            f"reader.evict_page_cache is {when!r}, but {folder} is on {kind}, whose files are always in memory: put "
            "the dataset on a drive, or set reader.evict_page_cache=never"
        )


def open_files_needed(read_threads: int) -> int:
    """Return the number of file descriptors that a rank needs."""
    return _FILES_PER_RANK + _FILES_PER_WORKER * read_threads


def _check_files(job: TrainingJob) -> None:
    """Raise the soft limit on file descriptors where needed; raises SpaceError when the hard limit is too low."""
    needed = open_files_needed(job.workload.reader.read_threads)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    elif hard < needed:
        raise SpaceError(
            f"reader.read_threads={job.workload.reader.read_threads} takes {needed} file descriptors per rank and the "
            f"limit is {hard}: lower reader.read_threads, or raise the limit (`ulimit -n {needed}`)"
        )


def _check_address_space(job: TrainingJob) -> None:
    """Raise SpaceError when a rank would exceed its limit on address space (RLIMIT_AS), where libraries abort."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = psutil.Process().memory_info().vms + _SAVING_BYTES + job.traits.rank_bytes(job.loader_spec(0))
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise SpaceError(
            f"a rank needs {needed / 2**20:.0f} MiB of address space, and the limit is {limit / 2**20:.0f} MiB: "
            f"raise it (`ulimit -v {-(-needed // 1024)}`, or unlimited)"
        )


def memory_needed(job: TrainingJob, local_ranks: int) -> int:
    """Return the bytes of memory that a host's ranks will use: batch buffers, read buffers, processes."""
    return local_ranks * job.traits.rank_bytes(job.loader_spec(0))


def _check_memory(job: TrainingJob, local_ranks: int) -> None:
    needed, memory = memory_needed(job, local_ranks), host_memory()
    if needed > memory.available_bytes:
        limit = memory.limit_bytes
        within = "" if limit is None else f", of the {limit / 2**20:,.0f} MiB of this container or job (control group)"
        own = job.workload.notes if job.workload.dataset.source == "folder" else ()
        raise SpaceError(
            f"the buffers of {local_ranks} ranks x {job.workload.reader.read_threads} workers need "
            f"{needed / 2**20:,.0f} MiB of memory on this host, and {memory.available_bytes / 2**20:,.0f} MiB are "
            f"available{within}: lower ranks, reader.read_threads, reader.prefetch_size or reader.batch_size"
            + "".join(f"; {note}" for note in own)
        )
