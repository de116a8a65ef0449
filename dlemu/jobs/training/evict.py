"""Drops the dataset's pages from this host's page cache, so that the next epoch reads from storage.

The kernel may ignore this; the result's share of bytes from storage (docs/metrics.md, section 7) shows whether it did.
"""

from __future__ import annotations

from datagen.engines import unreadable
from datagen.storage.storage_base import open_storage
from dlemu.jobs.training.plan import TrainingJob


def evict(job: TrainingJob, part: int, parts: int, *, write_first: bool) -> None:
    """Drop the pages of every `parts`-th file from number `part` on; raises DatasetError for one that can't be opened.

    `write_first`: write dirty pages to storage before, as only clean ones can be dropped.
    """
    storage = open_storage(job.workload.storage_spec.buffered)
    layouts = [layout for layout in (job.found.train, job.found.valid) if layout is not None]
    for layout in layouts:
        for path in map(layout.path, range(part, layout.num_files, parts)):
            try:
                storage.evict(path, write_first=write_first)
            except OSError as error:
                raise unreadable(path, error) from error
