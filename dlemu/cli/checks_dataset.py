"""Checks of the dataset and the storage it lies on."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator

import psutil

from datagen.errors import DlemuError
from datagen.inspection import Found, inspect
from dlemu.cli import checks_ceiling, checks_device
from dlemu.cli.checks import Check
from dlemu.config import datagen_command
from dlemu.config.schema import Workload
from dlemu.emulator.environment import describe_folder
from dlemu.emulator.job import make_job
from dlemu.emulator.preflight import check_host, memory_wanted
from dlemu.metrics.cache import IN_MEMORY, WANTED_RATIO
from dlemu.metrics.demand import demand

_DIRECT_BYTES = 4096


def checks(workload: Workload) -> Iterator[Check]:
    """Look at the storage, the dataset, and whether the ranks fit with it."""
    found, dataset = find_dataset(workload)
    storage = describe_folder(existing_folder(workload.dataset.data_folder))
    yield check_file_system(storage)
    yield from checks_device.checks(workload, storage)
    if found is None:
        yield check_space(storage, demand(workload.model.name, workload).dataset_gb * 1e9)
    yield check_direct(workload, found.train.path(0) if found and found.train.num_files else None)
    yield dataset
    if found is not None:
        yield check_cache(found, workload.reader.odirect, workload.reader.evict_page_cache == "epochs")
        yield check_fit(workload, found)
    yield from checks_ceiling.checks(workload, found)


def existing_folder(folder: str) -> str:
    """Return the folder, or the nearest one above it that exists."""
    path = os.path.abspath(folder)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def find_dataset(workload: Workload) -> tuple[Found | None, Check]:
    """Look for the dataset as a run would. That there is none yet is no failure: it can be made."""
    folder = workload.dataset.data_folder
    command = datagen_command(workload)
    if not os.path.isdir(folder):
        seen = f"{folder} does not exist yet"
        return None, Check(name="dataset", level="warn", seen=seen, wanted="a dataset", advice=command)
    try:
        found = inspect(workload.dataset, command_hint=command, storage=workload.storage_spec)
    except DlemuError as error:
        return None, Check(name="dataset", level="fail", seen=str(error))
    seen = f"{found.train.num_files:,} training files, {found.total_bytes / 1e9:,.2f} GB in {folder}"
    if found.notes:
        return found, Check(name="dataset", level="warn", seen=f"{seen}; {'; '.join(found.notes)}")
    return found, Check(name="dataset", level="ok", seen=seen)


def check_file_system(storage: dict[str, object]) -> Check:
    """Look at the file system below the dataset's folder."""
    kind = storage.get("file_system", "an unknown file system")
    seen = f"{storage['folder']} on {kind} ({storage.get('device', 'unknown device')})"
    if kind in IN_MEMORY:
        advice = "fine for trying dlemu out; to measure a drive, set dataset.data_folder to a folder on it"
        return Check(name="storage", level="warn", seen=seen, wanted="a drive or a server", advice=advice)
    return Check(name="storage", level="ok", seen=seen)


def check_space(storage: dict[str, object], wanted_bytes: float) -> Check:
    """Look whether a dataset that is not there yet has room."""
    free = storage["free_bytes"]
    assert isinstance(free, int)
    seen, wanted = f"{free / 1e9:,.1f} GB free", f"{wanted_bytes / 1e9:,.1f} GB for the dataset"
    if free < wanted_bytes:
        advice = "free some, lower dataset.num_files_train, or set dataset.data_folder to another disk"
        return Check(name="free space", level="fail", seen=seen, wanted=wanted, advice=advice)
    return Check(name="free space", level="ok", seen=seen, wanted=wanted)


def check_direct(workload: Workload, file: str | None) -> Check:
    """Look whether reading past the page cache works there, on a file of the dataset or one of our own."""
    folder = existing_folder(workload.dataset.data_folder)
    problem = _read_direct(file) if file else _read_own_direct(folder)
    if not problem:
        return Check(name="O_DIRECT", level="ok", seen=f"works in {folder}")
    if workload.reader.odirect:
        advice = "reader.odirect=false, or a folder on another file system"
        return Check(name="O_DIRECT", level="fail", seen=problem, wanted="reader.odirect=true", advice=advice)
    advice = "leave reader.odirect at false there"
    return Check(name="O_DIRECT", level="warn", seen=problem, wanted="reads past the page cache", advice=advice)


def check_cache(found: Found, odirect: bool, evicted: bool = False) -> Check:
    """Look whether memory could serve the dataset instead of the storage."""
    memory = psutil.virtual_memory().total
    ratio = found.total_bytes / memory
    seen = f"dataset {found.total_bytes / 1e9:,.1f} GB, {ratio:.2g} times the memory of {memory / 1e9:,.1f} GB"
    if ratio < WANTED_RATIO and not odirect and not evicted:
        advice = "reader.odirect=true, reader.evict_page_cache=epochs, or a dataset that large (MLPerf Storage's rule)"
        seen += ": after the first epoch the page cache can serve " + (
            "all reads" if ratio < 1 else "part of the reads"
        )
        wanted = f"{WANTED_RATIO:g} times the memory"
        return Check(name="page cache", level="warn", seen=seen, wanted=wanted, advice=advice)
    told = ", read past the cache" if odirect else ", evicted before each epoch" if evicted else ""
    return Check(name="page cache", level="ok", seen=seen + told)


def check_fit(workload: Workload, found: Found) -> Check:
    """Look whether the ranks find enough samples, memory and file descriptors."""
    try:
        job = make_job(workload, workload.ranks, found, folder="", started_at="")
        check_host(job, job.ranks)
    except DlemuError as error:
        return Check(name="ranks fit", level="fail", seen=str(error))
    wanted = memory_wanted(job, job.ranks) / 2**30
    steps = job.train_plan.steps_per_epoch
    return Check(name="ranks fit", level="ok", seen=f"{job.ranks} ranks, {steps:,} steps an epoch, {wanted:.1f} GiB")


def _read_own_direct(folder: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dlemu-doctor-") as file:
            file.write(bytes(_DIRECT_BYTES))
            file.flush()
            return _read_direct(file.name)
    except OSError as error:
        return f"not tried: {folder}: {error.strerror}"


def _read_direct(path: str) -> str:
    """Return why one block can't be read past the cache, nothing when it can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return f"{path}: {_reason(error)}"
    try:
        os.preadv(fd, [mmap.mmap(-1, _DIRECT_BYTES)], 0)  # a mapping begins on a page, as O_DIRECT wants
    except OSError as error:
        return f"{path}: {_reason(error)}"
    finally:
        os.close(fd)
    return ""


def _reason(error: OSError) -> str:
    return "this file system has no O_DIRECT" if error.errno == errno.EINVAL else error.strerror or str(error)
