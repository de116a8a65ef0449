"""Which folders below a tree are runs: those that hold a file that only a run of DLIO leaves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from dlemu.mlperf.dlio_config import OWN_FOLDER

_RUN_FILE = re.compile(r"^(summary\.json|(\d+_)?per_epoch_stats\.json|\d+_output\.json)$")
_SKIPPED = re.compile(r"^(\..*|code|__pycache__|node_modules)$")
"""Folders that hold no runs: hidden ones, and the copies of DLIO's source that submissions carry."""


def find_runs(trees: Iterable[str]) -> list[str]:
    """Return the run folders in the trees, sorted, each once. Links to folders are not followed below a tree."""
    found: set[str] = set()
    for tree in trees:
        for folder, below, names in os.walk(tree):
            below[:] = [name for name in below if not _SKIPPED.match(name)]
            if any(_RUN_FILE.match(name) for name in names):
                found.add(os.path.normpath(folder))
    return sorted(folder for folder in found if not _told_in_dlios_files(folder))


def _told_in_dlios_files(folder: str) -> bool:
    """Whether a folder is a run of dlemu that is told in DLIO's files: in its dlio/, or right above it (drop-in)."""
    if not os.path.isfile(os.path.join(folder, "steps.parquet")):
        return False
    places = [os.path.join(folder, "dlio")]
    if os.path.basename(folder).split("-")[0] == OWN_FOLDER:
        places.append(os.path.dirname(folder))
    return any(os.path.isfile(os.path.join(place, "summary.json")) for place in places)
