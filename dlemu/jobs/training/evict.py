"""Dropping the dataset's pages from this host's memory between epochs.

It is advice: the page-cache proof of the result (docs/metrics.md, section 7) says whether it was followed.
"""

from __future__ import annotations

from datagen.engines import unreadable
from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.jobs.training.plan import TrainingJob


def check_evictable(job: TrainingJob) -> None:
    """Raise UserError where pages can't be dropped because they are the files."""
    when, folder = job.workload.reader.evict_page_cache, job.workload.dataset.data_folder
    if when == "never":
        return
    kind = open_storage(job.workload.storage_spec.buffered).memory_kind(folder)
    if kind:
        raise UserError(
            f"reader.evict_page_cache is {when!r}, but {folder} is on {kind}, whose files are always in memory: put "
            "the dataset on a drive, or set reader.evict_page_cache=never"
        )


def evict(job: TrainingJob, part: int, parts: int, *, write_first: bool) -> None:
    """Drop the pages of every `parts`-th file, beginning with number `part`; raises DatasetError for one that is gone.

    `write_first` has what was not yet written of them written first.
    """
    storage = open_storage(job.workload.storage_spec.buffered)
    layouts = [layout for layout in (job.found.train, job.found.valid) if layout is not None]
    for layout in layouts:
        for path in map(layout.path, range(part, layout.num_files, parts)):
            try:
                storage.evict(path, write_first=write_first)
            except OSError as error:
                raise unreadable(path, error) from error
