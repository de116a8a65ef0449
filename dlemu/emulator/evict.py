"""Dropping the dataset's pages from memory between epochs, by posix_fadvise(POSIX_FADV_DONTNEED): no root is needed.

The kernel drops clean pages that nobody has mapped; so what is still to be written is written first. It is advice: the
page-cache proof of the result (docs/metrics.md, section 7) says whether it was followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from datagen.engines import unreadable
from datagen.errors import UserError
from dlemu.emulator.environment import describe_folder
from dlemu.emulator.job import Job
from dlemu.metrics.cache import IN_MEMORY


def check_evictable(job: Job) -> None:
    """Raise UserError where pages can't be dropped because they are the files."""
    if job.workload.reader.evict_page_cache == "never":
        return
    folder = job.workload.dataset.data_folder
    kind = describe_folder(folder).file_system
    if kind in IN_MEMORY:
        raise UserError(
            f"reader.evict_page_cache is {job.workload.reader.evict_page_cache!r}, but {folder} lies on {kind}, whose "
            "files are memory: put the dataset on a drive, or set reader.evict_page_cache=never"
        )


def evicts_before(job: Job, epoch: int) -> bool:
    """Say whether pages are dropped before an epoch, counted from 1."""
    when = job.workload.reader.evict_page_cache
    return when == "epochs" or (when == "start" and epoch == 1)


def evict(job: Job, part: int, parts: int, *, write_first: bool) -> None:
    """Drop the pages of every `parts`-th file, beginning with number `part`; raises DatasetError for one that is gone.

    `write_first` has the kernel write what it has not yet written of them.
    """
    for path in _paths(job, part, parts):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            if write_first:
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise unreadable(path, error) from error
        finally:
            os.close(descriptor)


def _paths(job: Job, part: int, parts: int) -> Iterator[str]:
    for layout in (job.found.train, job.found.valid):
        if layout is not None:
            yield from (layout.path(file) for file in range(part, layout.num_files, parts))
