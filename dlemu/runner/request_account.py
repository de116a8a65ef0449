"""Where the processes of a run count their requests to an object store, and what these came to."""

from __future__ import annotations

import os
from dataclasses import replace

from datagen.storage._request_counts import read_counts
from datagen.storage.storage_base import FOLDER_TYPES, StorageSpec
from dlemu.config.schema import Workload


def counted(workload: Workload, live_folder: str) -> StorageSpec:
    """Return a workload's storage, whose requests are counted below a run's live folder where it is made of objects."""
    spec = workload.storage_spec
    folders = workload.storage.storage_type in FOLDER_TYPES
    return spec if folders else replace(spec, account=request_folder(live_folder))


def requests_so_far(live_folder: str) -> tuple[int, ...]:
    """Return what a run's requests to an object store came to so far; nothing where there are none."""
    folder = request_folder(live_folder)
    if not os.path.isdir(folder):  # storage of files
        return ()
    counts = read_counts(folder)
    return tuple(counts.values.tolist()) if counts.requests else ()


def request_folder(live_folder: str) -> str:
    """Return where processes count their requests to an object store, below a run's live folder."""
    return os.path.join(live_folder, "requests")
