"""What rank 0 notes while a run goes on, so that a run that is cut short still tells what it did."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from dlemu.checkpoints.save import SavedCheckpoint
from dlemu.metrics.limit import Scaling

_FILE = "journal.json"


@dataclass(frozen=True, kw_only=True)
class Journal:
    """Everything a result needs besides the step logs."""

    wall_clock_offset_ns: int
    """What to add to rank 0's CLOCK_MONOTONIC to get nanoseconds since 1970 (UTC)."""
    started_ns: int
    """CLOCK_MONOTONIC of rank 0 when the ranks were up and the first epoch had not begun."""
    hosts: tuple[dict[str, Any], ...] = ()
    """`describe_host` of each node, in node order."""
    rank_nodes: tuple[int, ...] = ()
    """Index in `hosts` of each rank's node."""
    storage: dict[str, Any] | None = None
    """`describe_folder` of the dataset."""
    ceiling_au_percent: float | None = None
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    eviction_seconds: tuple[float, ...] = ()
    """How long dropping the dataset's pages took, each time."""
    stopped_early: dict[str, int] | None = None
    """Of a run that was asked to end early: `steps` that each rank took, and `planned_steps`; None for any other."""
    ended_ns: int | None = None
    scaling: Scaling | None = None
    """What more readers got after the run, where that was asked."""
    clock_offsets_ns: tuple[tuple[int, ...], ...] = ()
    """At the start of each epoch: what to add to each host's CLOCK_MONOTONIC to get the first host's, in node order."""
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of each rank with its workers, from the first epoch's start to the end of the last."""

    def noting(self, **changes: Any) -> Journal:
        """Return the journal with something noted."""
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write it by rename."""
        path = os.path.join(folder, _FILE)
        with open(path + ".part", "w") as out:
            json.dump(asdict(self), out)
        os.replace(path + ".part", path)


def read_journal(folder: str) -> Journal | None:
    """Return what a run noted before it ended, None if it never came so far."""
    try:
        with open(os.path.join(folder, _FILE)) as lines:
            noted = json.load(lines)
    except FileNotFoundError:
        return None
    noted["checkpoints"] = tuple(SavedCheckpoint(**saved) for saved in noted["checkpoints"])
    for name in ("hosts", "rank_nodes", "eviction_seconds", "cpu_seconds"):
        noted[name] = tuple(noted[name])
    noted["clock_offsets_ns"] = tuple(tuple(offsets) for offsets in noted["clock_offsets_ns"])
    if noted["scaling"] is not None:
        noted["scaling"] = Scaling(**noted["scaling"])
    return Journal(**noted)
