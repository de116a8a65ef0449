"""Chooses how to keep the page cache from serving reads, so that the storage is measured."""

from __future__ import annotations

from typing import Literal

import psutil

from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.config.schema import Workload
from dlemu.metrics.cache import WANTED_RATIO

Treatment = Literal["direct", "remote", "large", "evicted", "cached"]
"""How reads bypass the page cache; large: more data than memory, evicted: before each epoch, cached: they don't."""


def treatment_of(workload: Workload, total_bytes: int) -> Treatment:
    """Return how to keep the page cache from serving reads; raises UserError if that is impossible."""
    if workload.metric.cached:
        return "cached"
    storage, spec = open_storage(workload.storage_spec.buffered), workload.storage_spec
    if memory_kind := storage.memory_kind(workload.dataset.data_folder):
        raise UserError(
            f"the dataset lies on {memory_kind}, which is memory, not storage; set dataset.data_folder to a folder "
            "of the drive, or set metric.cached=true to measure memory"
        )
    if spec.direct:
        return "direct"
    if storage.is_remote:  # an object store, not cached here
        return "remote"
    return "large" if total_bytes >= WANTED_RATIO * psutil.virtual_memory().total else "evicted"
