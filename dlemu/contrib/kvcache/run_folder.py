"""The folder of a run's blocks within `kv.folder`: KV.FOLDER/kv-SEED/rank-00000-SEED/0000000000.kv

The first host that needs kv-SEED creates it. Each rank creates its own folder, holds the lock in it while it runs, and
removes it. On file systems, each folder is marked as dlemu's (`datagen.owned`). In an object store, the run's prefix
contains its seed, so that everything below the prefix belongs to the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace

from dlemu.contrib.kvcache.mover import file_name
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import DlemuError, Job, SpaceError, UserError, owned, storage_base

MAX_FILES = 10**6  # maximum per rank, which records all names before it creates the files, so that it can remove them
_LOCK = "lock"  # file in a rank's folder, which a living rank keeps locked
_DIRECT = "direct"  # file in the run's folder, created to test whether the file system supports O_DIRECT
_PREFIX = "kv-"
_GET_FLAGS, _SET_FLAGS, _TOPDIR = 0x80086601, 0x40086602, 0x20000
"""linux/fs.h: FS_IOC_GETFLAGS and FS_IOC_SETFLAGS on x86-64 and arm64, and FS_TOPDIR_FL."""


def storage_spec_of(job: Job) -> storage_base.StorageSpec:
    odirect = job.workload.section(KvSettings).odirect and is_local(job)
    return replace(job.storage_spec, direct=odirect, direct_writes=odirect)


def is_local(job: Job) -> bool:
    return job.workload.storage.has_paths


def blocks_folder(job: Job) -> str:
    return job.workload.storage.resolved(job.workload.section(KvSettings).folder)


def run_folder(job: Job) -> str:
    return f"{blocks_folder(job).rstrip('/')}/{_PREFIX}{job.seed:012x}"


def rank_folder(job: Job, rank: int) -> str:
    return f"{run_folder(job)}/rank-{rank:05d}-{job.seed:012x}"


def create_run_folder(job: Job) -> None:
    """Create the run's folder unless another host has, and remove the folders of killed runs. Raises UserError."""
    folder, run = blocks_folder(job), run_folder(job)
    run_name = os.path.basename(run) + "/"
    if not is_local(job) or os.path.isdir(run):
        return
    owned.take_folder(folder, "kv.folder")
    for name in owned.claimed(folder) - {run_name}:
        if name.startswith(_PREFIX) and not _is_used(os.path.join(folder, name)):
            _remove(os.path.join(folder, name.rstrip("/")))
    try:
        with _creating(run):
            owned.claim(folder, run_name)
            try:
                os.mkdir(run)
            except FileExistsError:  # Another host that shares the folder has just created it.
                return
            owned.claim(run, host_claim(), _DIRECT)
            _spread_subfolders(run)
        if job.workload.section(KvSettings).odirect:
            _check_direct(run)
    except (UserError, OSError):
        remove_run(job, failed=True)
        raise


def host_claim() -> str:
    """Return a name that is no file's: a host adds it to the marker of a run's folder that it has created."""
    return f"host-{socket.gethostname()}"


@contextlib.contextmanager
def _creating(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpaceError(
            f"{folder} can't be made: {error.strerror}; wanted a kv.folder that can be written, on a file system with "
            "free space and inodes (`df -i`)"
        ) from error


def _spread_subfolders(run: str) -> None:
    """Set a folder's flag that makes ext4 spread its subfolders over the disk, by their names.

    Without it, a run's files get inodes near those that an earlier run has just deleted. ext4 checks these one by one
    (`recently_deleted`, fs/ext4/ialloc.c), which takes eight times the CPU and allows a quarter of the rate.
    """
    descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # Other file systems have no such flag.
            flags = int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)), sys.byteorder)
            fcntl.ioctl(descriptor, _SET_FLAGS, (flags | _TOPDIR).to_bytes(8, sys.byteorder))
    finally:
        os.close(descriptor)


def check_space(job: Job, peak_bytes: int) -> None:
    folder = blocks_folder(job)
    free = storage_base.open_storage(storage_spec_of(job).buffered).free_bytes(folder)
    if free is not None and peak_bytes > free:
        raise SpaceError(
            f"the blocks take up to {peak_bytes / 1e9:.3g} GB, and {folder} has {free / 1e9:.3g} GB free: wanted a "
            "kv.capacity_gb for each rank, a shorter load (kv.seconds), or scale=laptop"
        )


def _check_direct(run: str) -> None:
    try:
        os.close(owned.create_new(os.path.join(run, _DIRECT), flags=os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        raise UserError(
            f"the file system of {run} refuses O_DIRECT ({error.strerror}): set kv.odirect=false, which measures "
            "the page cache as well, or kv.folder to one that has it (ext4, xfs, Lustre, NFS)"
        ) from error


def _is_used(folder: str) -> bool:
    """Return whether a living rank holds the lock in its folder below this folder of a run."""
    with contextlib.suppress(OSError), os.scandir(folder) as ranks:
        return any(owned.is_held(os.path.join(rank.path, _LOCK)) for rank in ranks)
    return False


@contextlib.contextmanager
def created_rank_folder(job: Job, rank: int, objects: int) -> Iterator[str]:
    """Context of a rank's folder, created for `objects` objects and removed at the end. Raises SpaceError."""
    folder = rank_folder(job, rank)
    if not is_local(job):
        storage = storage_base.open_storage(storage_spec_of(job))
        storage.make_folder(folder)
        try:
            yield folder
        finally:
            remove_objects(storage, folder)
        return
    with _creating(folder):
        owned.claim(run_folder(job), os.path.basename(folder) + "/")
        os.mkdir(folder)
        owned.claim(folder, _LOCK)
    with owned.held(os.path.join(folder, _LOCK)):
        with _creating(folder):
            owned.claim(folder, *map(file_name, range(objects * job.workload.section(KvSettings).tp)))
        try:
            yield folder
        finally:
            _remove(folder)


def remove_run(job: Job, *, failed: bool = False) -> bool:
    """Remove the run's folder (if it `failed`, also an unused marker of kv.folder); return whether it is gone."""
    if is_local(job):
        _remove(run_folder(job))
        if failed:
            owned.unmark(blocks_folder(job), os.path.basename(run_folder(job)))
        return not os.path.lexists(run_folder(job))
    storage = storage_base.open_storage(storage_spec_of(job))
    ranks = [rank_folder(job, rank) for rank in range(job.ranks)]
    are_gone = [remove_objects(storage, folder) for folder in (*ranks, run_folder(job))]
    return all(are_gone)


def _remove(folder: str) -> None:
    """Remove a run's or a rank's folder, with the unfinished files of killed threads."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            ranks = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for path in (folder, *ranks):
            owned.remove_parts(path)
    owned.remove_claimed(folder)


def remove_objects(storage: storage_base.StorageBase, folder: str) -> bool:
    """Remove the objects of a prefix; return whether the server allowed it. Raises nothing: it cleans up failures."""
    try:
        with storage.entries(folder) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
        for name in names:
            storage.remove(f"{folder}/{name}")
        storage.remove_folder(folder)
    except OSError:  # The prefix is gone, or not empty.
        return True
    except DlemuError:
        return False
    return True
