"""Keeps the page cache from serving reads: chooses how, and drops the dataset's pages, or all but a share of them."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Literal

import numpy as np
import psutil
from numpy.typing import NDArray

from datagen.errors import UserError
from datagen.formats.format_base import unreadable
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import TrainingJob
from dlemu.metrics.cache import WANTED_RATIO

Treatment = Literal["direct", "remote", "large", "evicted", "cached"]
"""How reads bypass the page cache; large: more data than memory, evicted: before each epoch, cached: they don't."""
_WHOLE_BYTES = 64 << 20
"""Files of at most this size are cached whole or not at all, as if read before; of larger files, parts are."""
_PART_BYTES = 4 << 20  # larger than any read-ahead window, so that a reader finds cached only what is to be cached
_CALL_BYTES = 1 << 20
_FILE_STEP, _PART_STEP = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
"""Steps of `_shares`: irrational, so their multiples modulo 1 are spread evenly between 0 and 1."""


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


def evict(job: TrainingJob, part: int, parts: int, *, write_first: bool) -> None:
    """Drop the pages of every `parts`-th file from number `part` on; raises DatasetError for one that can't be opened.

    `write_first`: write dirty pages before. `reader.page_cache_percent` of the bytes is read into the cache again.
    """
    storage = open_storage(job.workload.storage_spec.buffered)
    layouts = [layout for layout in (job.found.train, job.found.valid) if layout is not None]
    share = job.workload.reader.page_cache_percent / 100
    for layout in layouts:
        shares = _shares(layout.num_files, share, _FILE_STEP) if share else np.zeros(layout.num_files)
        for number in range(part, layout.num_files, parts):
            path = layout.path(number)
            try:
                storage.evict(path, write_first=write_first)
                if share:
                    _read_again(storage, path, number, share, float(shares[number]))
            except OSError as error:
                raise unreadable(path, error) from error


def _shares(pieces: int, share: float, step: float, begin: float = 0.0) -> NDArray[np.float64]:
    """Return for each piece (file, part) the share of it to cache, 1 or 0 except for one piece, so the sum is exact.

    4 pieces, `share` 0.4, `step` 0.618: multiples 0, 0.62, 0.24, 0.85 have ranks 0, 2, 1, 3; cached are 1, 0, 0.6, 0.
    """
    rank = np.argsort(np.argsort((begin + step * np.arange(pieces)) % 1))
    return np.clip(share * pieces - rank, 0.0, 1.0)


def _read_again(storage: StorageBase, path: str, number: int, share: float, file_share: float) -> None:
    """Read the first `file_share` of a file into the page cache; of a large file, `share` of its parts."""
    size = part_bytes = storage.size_bytes(path)
    shares = [file_share]
    if size > _WHOLE_BYTES:
        part_bytes = _PART_BYTES
        shares = _shares(-(-size // part_bytes), share, _PART_STEP, number * _FILE_STEP).tolist()
    ranges = [(part * part_bytes, part_share * part_bytes) for part, part_share in enumerate(shares) if part_share]
    if not ranges:
        return
    with closing(storage.open_unread_ahead(path)) as reader:  # else the kernel would read the next part as well
        buffer = memoryview(bytearray(_CALL_BYTES))
        for begin, length in ranges:
            end = min(size, begin + round(length))
            for offset in range(begin, end, _CALL_BYTES):
                reader.read_into(buffer[: min(_CALL_BYTES, end - offset)], offset)
