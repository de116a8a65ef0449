"""What a host is made of, as far as it explains a result."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from datagen.storage.storage_base import StorageSpec, open_storage
from dlemu import __version__
from dlemu.emulator.cpu_limit import cpu_limit

_PACKAGES = ("numpy", "torch", "tensorflow-cpu", "tensorflow", "h5py", "mpi4py", "hydra-core", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What a host is made of."""

    host: str
    processor: str = ""
    cpu_count: int = 1
    cpu_usable: int = 1
    """Cores that the run may use (affinity)."""
    cpu_limit: float | None = None
    """As many cores' time as a container or job may use, by its cgroup; None where nothing limits."""
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    dlemu: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions."""


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """The file system that a folder lies on."""

    folder: str
    mount: str = ""
    file_system: str = ""
    device: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None


def describe_host() -> dict[str, Any]:
    """Return the host's name, processor, cores, memory (bytes) and kernel, and the versions that matter."""
    return {
        "host": platform.node(),
        "processor": _processor(),
        "cpu_count": os.cpu_count() or 1,
        "cpu_usable": len(os.sched_getaffinity(0)),
        "cpu_limit": cpu_limit(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "dlemu": __version__,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def describe_storage(spec: StorageSpec, folder: str) -> dict[str, Any]:
    """Return `describe_folder` of a dataset's folder; of a storage without folders its name and free space (bytes)."""
    storage = open_storage(spec.buffered)
    local = storage.local_path(folder)
    if local is not None:
        return describe_folder(local)
    return {"folder": folder, "file_system": spec.type, "free_bytes": storage.free_bytes(folder)}


def describe_folder(folder: str) -> dict[str, Any]:
    """Return the file system a folder lies on: mount point, type, device, size and free space (bytes)."""
    path = os.path.realpath(folder)
    mounts = [part for part in psutil.disk_partitions(all=True) if _within(path, part.mountpoint)]
    usage = psutil.disk_usage(path)
    found: dict[str, Any] = {"folder": path, "total_bytes": usage.total, "free_bytes": usage.free}
    if mounts:
        mount = max(mounts, key=lambda part: len(part.mountpoint))
        found |= {"mount": mount.mountpoint, "file_system": mount.fstype, "device": mount.device}
    return found


def _within(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
