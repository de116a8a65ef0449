"""Checks of the file system, device and page cache below the dataset."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile

from datagen.storage.storage_base import open_storage
from dlemu.doctor.check_base import Check, Checks, Facts, outcome
from dlemu.machine.cgroup_limits import host_memory
from dlemu.machine.environment import describe_storage
from dlemu.metrics.cache import IN_MEMORY, WANTED_RATIO, past_the_cache
from dlemu.report.units import size
from dlemu.telemetry._devices import device_stack, mounts

_MIN_READ_AHEAD_KIB = 512  # with Linux's default, 128, a sample of 1 MiB becomes eight requests, few at a time
_LARGE_SAMPLE_BYTES = 1 << 20  # smaller samples need few requests with any read-ahead
_BLOCK_BYTES = 4096  # a multiple of every drive's logical block, 512 or 4096


def check_file_system(facts: Facts) -> Check:
    """The dataset's folder is on a drive or a server, not in memory."""
    file_system = describe_storage(facts.workload.storage_spec, facts.workload.dataset.data_folder)
    kind = file_system.file_system or "an unknown file system"
    observed = f"{file_system.folder} on {kind} ({file_system.device or 'unknown device'})"
    advice = "fine for trying dlemu out; to measure a drive, set dataset.data_folder to a folder on it"
    return outcome(kind in IN_MEMORY, observed, "a drive or a server", advice)


def check_read_ahead(facts: Facts) -> Check | None:
    """The device's read-ahead is large enough: it is the size of requests for reads through the page cache."""
    devices = [] if facts.folder is None else device_stack(facts.folder, mounts())[0]
    storage = describe_storage(facts.workload.storage_spec, facts.workload.dataset.data_folder)
    if not devices or storage.file_system == "btrfs":  # of a server or in memory; btrfs sets a read-ahead of its own
        return None
    device = devices[0]  # the file system's own; of an NVMe multipath device, only the paths may be counted
    sample_bytes = facts.demand.sample_bytes
    read_ahead_kib = (device.read_ahead_bytes or 0) >> 10
    observed = f"{device.name} reads {read_ahead_kib:,} KiB ahead"
    is_split = sample_bytes >= _LARGE_SAMPLE_BYTES and not facts.workload.storage_spec.direct
    wanted = f"{_MIN_READ_AHEAD_KIB} KiB or more for samples of {sample_bytes / 1e6:.1f} MB through the page cache"
    disk = device.below[0] if device.kind == "partition" else device.name
    direct = [setting for setting in past_the_cache(facts.workload) if "odirect" in setting]
    advice = ", or ".join([*direct, f"as root: echo 4096 > /sys/block/{disk}/queue/read_ahead_kb"])
    return outcome(is_split and read_ahead_kib < _MIN_READ_AHEAD_KIB, observed, wanted, advice)


def check_direct_reads(facts: Facts) -> Check | None:
    """The storage supports O_DIRECT, as tried on a file of the dataset or, without a dataset, on a temporary one."""
    spec, dataset = facts.workload.storage_spec, facts.usable_dataset
    if facts.folder is None:
        open_storage(spec)  # raises if reader.odirect is true and this storage does not support it
        return None
    file = facts.storage.local_path(dataset.train.path(0)) if dataset and dataset.train.num_files else None
    return judge_direct_reads(facts.folder, file, spec.direct)


def judge_direct_reads(folder: str, file: str | None, direct: bool) -> Check:
    """Return the outcome of reading `file`, else a temporary file in `folder`; problems fail if reads are `direct`."""
    problem = _read_problem(file) if file else _temporary_file_problem(folder)
    advice = "reader.odirect=false, or a folder on another file system"
    wanted = "reads that bypass the page cache"
    return outcome(bool(problem), problem or f"works in {folder}", wanted, advice, level="fail" if direct else "warn")


def _temporary_file_problem(folder: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dlemu-doctor-") as file:
            file.write(bytes(_BLOCK_BYTES))
            file.flush()
            return _read_problem(file.name)
    except OSError as error:
        return f"not tried: {folder}: {error.strerror}"


def _read_problem(path: str) -> str:
    """Return why a block of the file can't be read with O_DIRECT; empty if it can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(fd, [mmap.mmap(-1, _BLOCK_BYTES)], 0)  # mapped memory is page-aligned, as O_DIRECT requires
        finally:
            os.close(fd)
    except OSError as error:
        reason = "no O_DIRECT on this file system" if error.errno == errno.EINVAL else error.strerror or str(error)
        return f"{path}: {reason}"
    return ""


def check_page_cache(facts: Facts) -> Check | None:
    """The dataset is too large for the page cache to serve it instead of the storage."""
    dataset = facts.usable_dataset
    if dataset is None or facts.folder is None:
        return None
    memory_bytes = host_memory().total_bytes
    ratio = dataset.total_bytes / memory_bytes
    observed = f"dataset {size(dataset.total_bytes)}, {ratio:.2g} times the memory of {size(memory_bytes)}"
    if facts.workload.storage_spec.direct:
        return Check(observed=f"{observed}, read past the cache")
    if facts.workload.reader.evict_page_cache == "epochs":
        return Check(observed=f"{observed}, evicted before each epoch")
    if ratio < WANTED_RATIO:
        observed += f": after the first epoch the page cache can serve {'all' if ratio < 1 else 'part of the'} reads"
    advice = ", ".join([*past_the_cache(facts.workload), "or a dataset that large (MLPerf Storage's rule)"])
    return outcome(ratio < WANTED_RATIO, observed, f"{WANTED_RATIO:g} times the memory", advice)


CHECKS: Checks = {
    "storage": check_file_system,
    "read ahead": check_read_ahead,
    "O_DIRECT": check_direct_reads,
    "page cache": check_page_cache,
}
