"""What the host must have before a run may start: memory and file descriptors. Checked once on each node."""

from __future__ import annotations

import os
import resource

import psutil

from datagen.errors import SpaceError, UserError
from dlemu.config.interleave import samples_read_ahead
from dlemu.config.streams import dali_depths
from dlemu.emulator.evict import check_evictable
from dlemu.emulator.job import Job, accelerator_class
from dlemu.loaders.loader_base import LoaderSpec

_PROCESS_BYTES = 24 << 20
"""Private memory of one idle rank or worker, measured on CPython 3.11 with PyTorch 2.13 forked after import."""
_TENSORFLOW_BYTES = 64 << 20
"""Private memory of a rank beside its buffers, measured with TensorFlow 2.21 forked after import, three epochs."""
_DALI_BYTES = 32 << 20
"""The same of DALI 2.4."""
_DALI_HELD = 6
"""Batches for which it has memory beside those ready or under way, measured with npy; the trainer's two are in it."""
_FILES_PER_WORKER = 6
"""Descriptors a rank holds for each worker (queues, pipes, sentinel), measured with PyTorch 2.13."""
_FILES_PER_RANK = 64


def check_host(job: Job, local_ranks: int) -> None:
    """Raise SpaceError when this host can't hold its ranks, UserError when it can't do what was asked."""
    check_evictable(job)
    if job.workload.telemetry.enabled and job.workload.telemetry.block_trace and os.geteuid() != 0:
        raise UserError("telemetry.block_trace=true needs root on each host: run as root, or leave it out")
    accelerator_class(job.workload).check_host(job.accelerator_spec(0))
    _check_files(job)
    _check_memory(job, local_ranks)


def files_wanted(read_threads: int) -> int:
    """Return the file descriptors that a rank needs."""
    return _FILES_PER_RANK + _FILES_PER_WORKER * read_threads


def _check_files(job: Job) -> None:
    wanted = files_wanted(job.workload.reader.read_threads)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    elif hard < wanted:
        raise SpaceError(
            f"{job.workload.reader.read_threads} workers want {wanted} file descriptors a rank and the limit is "
            f"{hard}: lower reader.read_threads, or raise the limit (`ulimit -n {wanted}`)"
        )


def memory_wanted(job: Job, local_ranks: int) -> int:
    """Return the bytes that the ranks of a host will touch: batch buffers, read buffers, processes."""
    spec = job.loader_spec(0)
    if job.workload.reader.data_loader == "dali":
        return local_ranks * (_dali_bytes(job, spec) + _DALI_BYTES)
    if job.streams:
        return local_ranks * (_stream_bytes(job, spec) + _TENSORFLOW_BYTES)
    workers = max(1, spec.read_threads)
    reading = sum(phase.fetch.buffer_bytes for phase in spec.phases.values() if phase.fetch.storage != "null")
    buffers = workers * (spec.slots_per_worker * spec.slot_bytes + reading)
    return local_ranks * (buffers + (workers + 1) * _PROCESS_BYTES)


def _stream_bytes(job: Job, spec: LoaderSpec) -> int:
    """Return what a rank's stream holds: records read ahead, batches of them, batches ready or with the trainer."""
    fetch, batch = spec.phases["train"].fetch, spec.phases["train"].batch_size
    record = fetch.nominal_sample_bytes
    shipped = fetch.resize_bytes or record
    waiting = spec.shuffle_window + samples_read_ahead(job.workload.reader, job.workload.dataset)
    making, ready = spec.computation_calls + 1, spec.prefetch_size + 2
    return waiting * record + batch * (making * (record + shipped) + ready * shipped)


def _dali_bytes(job: Job, spec: LoaderSpec) -> int:
    """Return what a rank's pipeline holds: its window, batches as they are read and as they are shipped."""
    phase = spec.phases["train"]
    sample = phase.fetch.nominal_sample_bytes if job.streams else phase.fetch.place_bytes
    shipped = phase.fetch.resize_bytes or (sample if phase.fetch.decode == "full" else 0)  # else what was read itself
    window = spec.shuffle_window * sample if job.streams else 0
    return window + (sum(dali_depths(spec.prefetch_size)) + _DALI_HELD) * phase.batch_size * (sample + shipped)


def _check_memory(job: Job, local_ranks: int) -> None:
    wanted, available = memory_wanted(job, local_ranks), psutil.virtual_memory().available
    if wanted > available:
        raise SpaceError(
            f"{local_ranks} ranks x {job.workload.reader.read_threads} workers want {wanted / 2**30:.1f} GiB of memory "
            f"on this host for their buffers and {available / 2**30:.1f} GiB are available: lower ranks, "
            "reader.read_threads, reader.prefetch_size or reader.batch_size"
        )
