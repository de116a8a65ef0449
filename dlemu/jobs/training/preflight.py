"""What the host must have and be able to do before a run may start. Checked once on each node."""

from __future__ import annotations

import os
import resource

import psutil

from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import open_storage
from dlemu.comm.cgroup_limits import host_memory
from dlemu.jobs.training.plan import TrainingJob, accelerator_class

_FILES_PER_WORKER = 6
"""Descriptors a rank holds for each worker (queues, pipes, sentinel), measured with PyTorch 2.13."""
_FILES_PER_RANK = 64  # for its own: logs, sockets to other ranks, what libraries open
_SAVING_BYTES = 256 << 20
"""Address space that writing the results takes beside what is mapped: below it their libraries end the process."""


def check_host(job: TrainingJob, local_ranks: int) -> None:
    """Raise SpaceError when this host can't hold its ranks, UserError when it can't do what was requested."""
    _check_evictable(job)
    if job.workload.telemetry.enabled and job.workload.telemetry.block_trace and os.geteuid() != 0:
        raise UserError("telemetry.block_trace=true needs root on each host: run as root, or leave it out")
    accelerator_class(job.workload).check_host(job.accelerator_spec(0))
    _check_files(job)
    _check_memory(job, local_ranks)
    _check_address_space(job)


def _check_evictable(job: TrainingJob) -> None:
    """Raise UserError where pages can't be dropped because they are the files."""
    when, folder = job.workload.reader.evict_page_cache, job.workload.dataset.data_folder
    if when == "never":
        return
    kind = open_storage(job.workload.storage_spec.buffered).memory_kind(folder)
    if kind:
        raise UserError(
            f"reader.evict_page_cache is {when!r}, but {folder} is on {kind}, whose files are always in memory: put "
            "the dataset on a drive, or set reader.evict_page_cache=never"
        )


def files_wanted(read_threads: int) -> int:
    """Return the file descriptors that a rank needs."""
    return _FILES_PER_RANK + _FILES_PER_WORKER * read_threads


def _check_files(job: TrainingJob) -> None:
    wanted = files_wanted(job.workload.reader.read_threads)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    elif hard < wanted:
        raise SpaceError(
            f"{job.workload.reader.read_threads} workers need {wanted} file descriptors per rank and the limit is "
            f"{hard}: lower reader.read_threads, or raise the limit (`ulimit -n {wanted}`)"
        )


def _check_address_space(job: TrainingJob) -> None:
    """Raise SpaceError when a rank would run into the limit on its address space, where libraries abort."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + _SAVING_BYTES + job.traits.rank_bytes(job.loader_spec(0))
    if limit != resource.RLIM_INFINITY and wanted > limit:
        raise SpaceError(
            f"a rank needs {wanted / 2**20:.0f} MiB of address space, and the limit is {limit / 2**20:.0f} MiB: "
            f"raise it (`ulimit -v {-(-wanted // 1024)}`, or unlimited)"
        )


def memory_wanted(job: TrainingJob, local_ranks: int) -> int:
    """Return the bytes that the ranks of a host will touch: batch buffers, read buffers, processes."""
    return local_ranks * job.traits.rank_bytes(job.loader_spec(0))


def _check_memory(job: TrainingJob, local_ranks: int) -> None:
    wanted, memory = memory_wanted(job, local_ranks), host_memory()
    if wanted > memory.available_bytes:
        limit = memory.limit_bytes
        within = "" if limit is None else f", of the {limit / 2**20:,.0f} MiB of this container or job (control group)"
        raise SpaceError(
            f"the buffers of {local_ranks} ranks x {job.workload.reader.read_threads} workers need "
            f"{wanted / 2**20:,.0f} MiB of memory on this host, and {memory.available_bytes / 2**20:,.0f} MiB are "
            f"available{within}: lower ranks, reader.read_threads, reader.prefetch_size or reader.batch_size"
        )
