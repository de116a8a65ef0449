"""What a search or a sweep reports while it goes on, in addition to the events of any list of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlemu.config.schema import Workload
from dlemu.runner.cold import Treatment
from dlemu.runner.run_list import RunBegan, RunEnded, RunsPlanned
from dlemu.studies.answers import SizeAnswer, SweepAnswer, SweepPoint, Trial
from dlemu.studies.prerequisites import Capacity


@dataclass(frozen=True, kw_only=True)
class SearchBegan(RunsPlanned):
    """The settings and the dataset are checked; nothing is measured yet."""

    workload: Workload
    page_cache: Treatment
    total_bytes: int
    """Size of the dataset."""
    capacity: Capacity


@dataclass(frozen=True, kw_only=True)
class StorageProbed:
    """The read probe has ended."""

    probe_mb_per_second: float
    mb_per_accelerator: float
    """Read rate that one accelerator needs, from the workload's nominal sizes."""
    predicted_accelerators: int = 0
    """The largest number that the model expects to pass; the search begins there."""


SizingEvent = (
    RunsPlanned
    | SearchBegan
    | StorageProbed
    | RunBegan
    | RunEnded[Trial, SizeAnswer]
    | RunEnded[SweepPoint, SweepAnswer]
)
OnEvent = Callable[[SizingEvent], None]
