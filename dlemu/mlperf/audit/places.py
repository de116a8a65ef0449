"""Where runs lie: each under a system, by a short name there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a run is listed."""

    parent: str
    """The folder that it shares with the other runs of its system; may be empty."""
    system: str
    """The same below what all runs have in common."""
    run: str
    """The run's folder below `parent`."""


def places(paths: Sequence[str]) -> list[Place]:
    """Return the place of each run; a folder that holds one run only is no system of its own."""
    crowd = Counter(os.path.dirname(path) for path in paths)
    top = common_folder(paths)
    found = []
    for path in paths:
        parent = os.path.dirname(path)
        above = os.path.dirname(parent)
        if crowd[parent] == 1 and above and above != parent:
            parent = above
        found.append(
            Place(parent, os.path.relpath(parent or os.curdir, top), os.path.relpath(path, parent or os.curdir))
        )
    return found


def common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder above all systems, `.` where there is none."""
    above = [os.path.dirname(os.path.dirname(path)) or os.curdir for path in paths]
    return os.path.commonpath(above) if len({os.path.isabs(path) for path in above}) == 1 else os.curdir
