"""What a check of the host is given, and what it returns. A check is data: nothing here prints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from datagen.errors import DlemuError
from datagen.inspection import Dataset, inspect
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.comm.cgroup_limits import HostMemory, cpu_limit, host_memory
from dlemu.comm.environment import StorageFacts, describe_folder, existing_folder
from dlemu.config import datagen_command
from dlemu.config.schema import Workload
from dlemu.doctor._block_device import BlockDevice, block_device
from dlemu.metrics.demand import Demand, demand

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """What became of one check. `wanted` and `advice` are empty where there is nothing to want or to do."""

    name: str
    level: Level
    observed: str
    wanted: str = ""
    advice: str = ""


def failed(name: str, error: Exception) -> Check:
    """Return the outcome of a check that raised."""
    text = str(error) if isinstance(error, DlemuError) else f"{type(error).__name__}: {error}"
    return Check(name=name, level="fail", observed=text)


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The cores of this host and what this process may have of them."""

    count: int
    usable: int
    """By affinity."""
    limit: float | None = None
    """As many cores' time as the control group allows; None where nothing limits it."""


@dataclass(frozen=True)
class Facts:
    """The workload, and what several checks want to know of this host: looked up once, when first requested."""

    workload: Workload

    @cached_property
    def cores(self) -> Cores:
        return Cores(count=os.cpu_count() or 1, usable=len(os.sched_getaffinity(0)), limit=cpu_limit())

    @cached_property
    def memory(self) -> HostMemory:
        """The memory that the ranks of this host can have."""
        return host_memory()

    @cached_property
    def demand(self) -> Demand:
        """What one accelerator needs from the storage."""
        return demand(self.workload.model.name, self.workload)

    @cached_property
    def storage(self) -> StorageBase:
        """The storage of the dataset, read through the page cache; UserError when there is none of that name."""
        return open_storage(self.workload.storage_spec.buffered)

    @cached_property
    def folder(self) -> str | None:
        """The dataset's folder, or the nearest one above it that exists; None for a storage without local folders."""
        local = self.storage.local_path(self.workload.dataset.data_folder)
        return None if local is None else existing_folder(local)

    @cached_property
    def file_system(self) -> StorageFacts | None:
        """What that folder is on."""
        return None if self.folder is None else describe_folder(self.folder)

    @cached_property
    def device(self) -> BlockDevice | None:
        """The block device below that file system; None when there is none (memory, a network, an overlay)."""
        return None if self.file_system is None else block_device(self.file_system.folder, self.file_system.device)

    @cached_property
    def dataset(self) -> Dataset | DlemuError | None:
        """The dataset, what is wrong with it, or None when there is none yet."""
        workload = self.workload
        if not self.storage.is_folder(workload.dataset.data_folder):
            return None
        try:
            return inspect(
                workload.dataset,
                command_hint=lambda: datagen_command(workload),
                storage=workload.storage_spec.buffered,
            )
        except DlemuError as error:
            return error

    @property
    def usable_dataset(self) -> Dataset | None:
        """The dataset when a run could read it."""
        return None if isinstance(self.dataset, DlemuError) else self.dataset


class HostCheck(Protocol):
    """What a module of this folder has."""

    NAME: str
    ORDER: int

    def check(self, facts: Facts) -> Check | None:
        """Look; None where there is nothing to look at. May raise."""
        ...
