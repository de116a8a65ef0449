"""Chooses how to keep the page cache from serving reads, so that the storage is measured."""

from __future__ import annotations

from typing import Literal

import psutil

from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.config.schema import Workload
from dlemu.metrics.cache import WANTED_RATIO

Treatment = Literal["direct", "remote", "large", "evicted", "cached"]
"""How: O_DIRECT, storage that is not cached here, more data than memory, eviction per epoch; `cached`: not at all."""


def treatment(
    *, direct: bool, cached: bool, total_bytes: int, memory_bytes: int, memory_kind: str, remote: bool = False
) -> Treatment:
    """Return how to keep the page cache from serving reads; raises UserError if that is impossible.

    `memory_kind`: tmpfs or another file system in memory that the data is on; `remote`: an object store, not cached
    here.
    """
    if cached:
        return "cached"
    if memory_kind:
        raise UserError(
            f"the dataset lies on {memory_kind}, which is memory, not storage; set dataset.data_folder to a folder "
            "of the drive, or give --cached to size memory"
        )
    if direct:
        return "direct"
    if remote:
        return "remote"
    return "large" if total_bytes >= WANTED_RATIO * memory_bytes else "evicted"


def treatment_of(workload: Workload, total_bytes: int, *, cached: bool) -> Treatment:
    storage = open_storage(workload.storage_spec.buffered)
    return treatment(
        direct=workload.storage_spec.direct,
        cached=cached,
        total_bytes=total_bytes,
        memory_bytes=psutil.virtual_memory().total,
        memory_kind=storage.memory_kind(workload.dataset.data_folder),
        remote=storage.is_remote,
    )
