"""Facts of a host and its storage that may explain a result: hardware, limits and software versions."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath

import psutil

from datagen.regular import existing_folder as existing_folder
from datagen.storage.storage_base import StorageSpec, open_storage
from datagen.withheld import printable, redact_urls
from dlemu import __version__
from dlemu.machine.cgroup_limits import cpu_limit, memory_limit_bytes

_PACKAGES = ("numpy", "torch", "tensorflow-cpu", "tensorflow", "h5py", "mpi4py", "hydra-core", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """A host's hardware, its limits and its software."""

    host: str
    processor: str = ""
    cpu_count: int = 1
    cpu_usable: int = 1
    """Number of cores that the run may use (CPU affinity)."""
    cpu_limit: float | None = None
    """How many cores' worth of CPU time the cgroup of the container or job allows; None without a limit."""
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    """Memory that the cgroup of the container or job allows; None without a limit."""
    kernel: str = ""
    dlemu: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the installed packages that can influence a result, by name."""


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """The file system that a folder is on."""

    folder: str
    file_system: str = ""
    device: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None


def describe_host() -> HostFacts:
    return HostFacts(
        host=platform.node(),
        processor=proc_facts("cpuinfo").get("model name") or platform.machine(),
        cpu_count=os.cpu_count() or 1,
        cpu_usable=len(os.sched_getaffinity(0)),
        cpu_limit=cpu_limit(),
        memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=memory_limit_bytes(),
        kernel=platform.release(),
        dlemu=__version__,
        packages={
            "python": platform.python_version(),
            **{name: installed for name in _PACKAGES if (installed := installed_version(name))},
        },
    )


def describe_storage(spec: StorageSpec, folder: str) -> StorageFacts:
    """Return the file system of a folder or its nearest existing parent, or the type and server of an object store."""
    storage = open_storage(spec.buffered)
    local = storage.local_path(folder)
    if local is not None:
        return describe_folder(existing_folder(local))
    free_bytes = storage.free_bytes(folder)
    return StorageFacts(folder=redact_urls(folder), file_system=spec.type, device=storage.server, free_bytes=free_bytes)


def describe_folder(folder: str) -> StorageFacts:
    path = os.path.realpath(folder)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if PurePath(path).is_relative_to(mount.mountpoint)]
    usage = psutil.disk_usage(path)
    mount = max(reversed(mounts), key=lambda mount: len(mount.mountpoint), default=None)  # of equals, the latest
    return StorageFacts(
        folder=printable(path),
        file_system=mount.fstype if mount else "",
        device=printable(mount.device) if mount else "",
        total_bytes=usage.total,
        free_bytes=usage.free,
    )


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def proc_facts(name: str) -> dict[str, str]:
    """Return the `KEY: VALUE` lines of /proc/NAME; empty if it does not exist.

    /proc/cpuinfo repeats its keys for each processor: the values of the last one are returned, without its number.
    """
    path = f"/proc/{name}"
    if not os.path.exists(path):
        return {}
    with open(path) as lines:
        pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {key.strip(): value.strip() for key, value in pairs if key.strip() != "processor"}
