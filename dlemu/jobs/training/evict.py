"""Dropping the dataset's pages from this host's memory between epochs.

It is advice: the page-cache proof of the result (docs/metrics.md, section 7) says whether it was followed.
"""

from __future__ import annotations

from datagen.engines import unreadable
from datagen.storage.storage_base import open_storage
from dlemu.jobs.training.plan import TrainingJob


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
