"""Counts of the requests that the processes of a run send to an object store."""

from __future__ import annotations

import os
from dataclasses import replace

from datagen.storage._request_counts import read_counts
from datagen.storage.storage_base import FOLDER_TYPES, StorageSpec
from dlemu.config.schema import Workload


def spec_with_request_counts(workload: Workload, live_folder: str) -> StorageSpec:
    """Return a workload's storage; if it is an object store, requests are counted below the run's live folder."""
    spec = workload.storage_spec
    folders = workload.storage.storage_type in FOLDER_TYPES
    return spec if folders else replace(spec, account=request_folder(live_folder))


def requests_so_far(live_folder: str) -> tuple[int, ...]:
    """Return the counts of a run's requests so far, in the order of `RequestCounts.values`; () without requests."""
    folder = request_folder(live_folder)
    if not os.path.isdir(folder):  # not an object store
        return ()
    counts = read_counts(folder)
    return tuple(counts.values.tolist()) if counts.requests else ()


def request_folder(live_folder: str) -> str:
    """Return the folder, below a run's live folder, in which processes count their requests to an object store."""
    return os.path.join(live_folder, "requests")
