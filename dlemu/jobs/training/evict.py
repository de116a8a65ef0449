"""Keeps the page cache from serving reads: `treatment_of` chooses how, `evict` empties it of the dataset's pages.

With `reader.page_cache_percent` a share of the dataset is then read into the cache again: small files as a whole, and
chunks of large files, chosen so that the share is exact and spread evenly over the dataset.
"""

from __future__ import annotations

import math
from contextlib import closing, suppress
from typing import Literal

import numpy as np
import psutil
from numpy.typing import NDArray

from datagen.errors import UserError
from datagen.formats.format_base import format_named, unreadable
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import TrainingJob
from dlemu.metrics.cache import WANTED_RATIO

# Why the page cache serves no reads: O_DIRECT, an object store, a dataset far larger than memory, or eviction before
# each epoch; `cached`: it may serve them (`metric.cached`)
Treatment = Literal["direct", "remote", "large", "evicted", "cached"]
_WHOLE_BYTES = 64 << 20  # files of at most this size are cached as a whole or not at all; larger files by chunks
_CHUNK_BYTES = 4 << 20  # larger than any read-ahead window, so that reading a chunk does not cache the next one
_CALL_BYTES = 1 << 20  # of a read call
# Steps for `_shares` of files and of chunks: irrational, so their multiples modulo 1 are spread evenly over [0, 1)
_FILE_STEP, _CHUNK_STEP = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


def treatment_of(workload: Workload, total_bytes: int) -> Treatment:
    """Return what keeps the page cache from serving reads; raises UserError if the dataset lies in memory."""
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
    if storage.is_remote:  # an object store: this host does not cache it
        return "remote"
    return "large" if total_bytes >= WANTED_RATIO * psutil.virtual_memory().total else "evicted"


def evict(job: TrainingJob, first: int, stride: int, *, write_first: bool) -> None:
    """Evict every `stride`-th file from number `first` on; raises DatasetError if one can't be opened.

    `write_first`: write dirty pages first. `reader.page_cache_percent` of the bytes are then read into the cache.
    """
    storage = open_storage(job.workload.storage_spec.buffered)
    sides = format_named(job.dataset.spec.format).sides
    layouts = [layout for layout in (job.dataset.train, job.dataset.valid) if layout is not None]
    cached_share = job.workload.reader.page_cache_percent / 100
    for layout in layouts:
        shares = _shares(layout.num_files, cached_share, _FILE_STEP) if cached_share else np.zeros(layout.num_files)
        for number in range(first, layout.num_files, stride):
            path = layout.path(number)
            try:
                storage.evict(path, write_first=write_first)
                for side in sides:  # an index, which is read again too
                    with suppress(FileNotFoundError):
                        storage.evict(side.path(layout, number), write_first=write_first)
                if cached_share:
                    _warm_page_cache(storage, path, number, cached_share, float(shares[number]))
            except OSError as error:
                raise unreadable(path, error) from error


def _shares(count: int, share: float, step: float, begin: float = 0.0) -> NDArray[np.float64]:
    """Return how much of each of `count` files or chunks to cache, `share` in total: all or nothing except for one.

    Item k has the key `begin` + k x `step` modulo 1; those with the lowest keys are cached. Of 4 items with step 0.618
    the keys are 0, 0.62, 0.24, 0.85; `share` 0.4 is 1.6 items: 1, 0, 0.6, 0.
    """
    keys = (begin + step * np.arange(count)) % 1
    key_rank = np.argsort(np.argsort(keys))  # of the order that sorts the keys, argsort gives the rank of each key
    return np.clip(share * count - key_rank, 0.0, 1.0)


def _warm_page_cache(storage: StorageBase, path: str, number: int, share: float, file_share: float) -> None:
    """Read the first `file_share` of a small file into the page cache, or `share` of the chunks of a large one."""
    size_bytes = chunk_bytes = storage.size_bytes(path)
    shares = [file_share]
    if size_bytes > _WHOLE_BYTES:
        chunk_bytes = _CHUNK_BYTES
        shares = _shares(math.ceil(size_bytes / chunk_bytes), share, _CHUNK_STEP, number * _FILE_STEP).tolist()
    ranges = [(chunk * chunk_bytes, fraction * chunk_bytes) for chunk, fraction in enumerate(shares) if fraction]
    if not ranges:
        return
    with closing(storage.open_unread_ahead(path)) as reader:  # else the kernel would read the next chunk, too
        buffer = memoryview(bytearray(_CALL_BYTES))
        for begin, length in ranges:
            end = min(size_bytes, begin + round(length))
            for offset in range(begin, end, _CALL_BYTES):
                reader.read_into(buffer[: min(_CALL_BYTES, end - offset)], offset)
