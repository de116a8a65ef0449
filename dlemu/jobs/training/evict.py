"""Keeps the page cache from serving reads: chooses how, and evicts the dataset, or all but a share of it."""

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
"""How reads bypass the page cache; large: more data than memory, evicted: before each epoch, cached: not at all."""
_WHOLE_BYTES = 64 << 20
"""Files of at most this size are cached as a whole, as if read before, or not at all; larger files by parts."""
_PART_BYTES = 4 << 20  # larger than any read-ahead window, so that read-ahead brings no further part
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
    if storage.is_remote:  # an object store: this host does not cache it
        return "remote"
    return "large" if total_bytes >= WANTED_RATIO * psutil.virtual_memory().total else "evicted"


def evict(job: TrainingJob, first: int, stride: int, *, write_first: bool) -> None:
    """Evict every `stride`-th file from number `first` on; raises DatasetError if one can't be opened.

    `write_first`: write dirty pages first. `reader.page_cache_percent` of the bytes are then read into the cache.
    """
    storage = open_storage(job.workload.storage_spec.buffered)
    layouts = [layout for layout in (job.dataset.train, job.dataset.valid) if layout is not None]
    share = job.workload.reader.page_cache_percent / 100
    for layout in layouts:
        shares = _shares(layout.num_files, share, _FILE_STEP) if share else np.zeros(layout.num_files)
        for number in range(first, layout.num_files, stride):
            path = layout.path(number)
            try:
                storage.evict(path, write_first=write_first)
                if share:
                    _read_into_cache(storage, path, number, share, float(shares[number]))
            except OSError as error:
                raise unreadable(path, error) from error


def _shares(pieces: int, share: float, step: float, begin: float = 0.0) -> NDArray[np.float64]:
    """Return the share to cache of each piece (file or part): 1 or 0 except for one piece, so that the sum is exact.

    4 pieces, `share` 0.4, `step` 0.618: multiples 0, 0.62, 0.24, 0.85 have ranks 0, 2, 1, 3; cached are 1, 0, 0.6, 0.
    """
    rank = np.argsort(np.argsort((begin + step * np.arange(pieces)) % 1))
    return np.clip(share * pieces - rank, 0.0, 1.0)


def _read_into_cache(storage: StorageBase, path: str, number: int, share: float, file_share: float) -> None:
    """Read the first `file_share` of a file into the page cache, or `share` of the parts of a large file."""
    size = part_bytes = storage.size_bytes(path)
    shares = [file_share]
    if size > _WHOLE_BYTES:
        part_bytes = _PART_BYTES
        shares = _shares(-(-size // part_bytes), share, _PART_STEP, number * _FILE_STEP).tolist()
    ranges = [(part * part_bytes, part_share * part_bytes) for part, part_share in enumerate(shares) if part_share]
    if not ranges:
        return
    with closing(storage.open_unread_ahead(path)) as reader:  # else the kernel would read the next part, too
        buffer = memoryview(bytearray(_CALL_BYTES))
        for begin, length in ranges:
            end = min(size, begin + round(length))
            for offset in range(begin, end, _CALL_BYTES):
                reader.read_into(buffer[: min(_CALL_BYTES, end - offset)], offset)
