"""What a search or a sweep tells while it goes on, to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlemu.config.schema import Workload
from dlemu.probing.cold import Treatment
from dlemu.sizing.answers import SizeAnswer, SweepPoint, Trial
from dlemu.sizing.prerequisites import Capacity


@dataclass(frozen=True, kw_only=True)
class SearchBegan:
    """Everything is checked; nothing is read yet."""

    folder: str
    workload: Workload
    page_cache: Treatment
    total_bytes: int
    """Of the dataset."""
    capacity: Capacity
    finished_trials: int
    """Of an interrupted search that goes on."""


@dataclass(frozen=True, kw_only=True)
class StorageProbed:
    """The read probe has ended."""

    probe_mb_per_second: float
    mb_per_accelerator: float
    """What one accelerator asks for, by the workload's nominal sizes."""
    predicted_accelerators: int = 0
    """The most that the model says will pass; the search begins there."""


@dataclass(frozen=True, kw_only=True)
class TrialBegan:
    """A trial begins."""

    number: int
    """From 1."""
    accelerators: int


@dataclass(frozen=True, kw_only=True)
class TrialEnded:
    """A trial has ended, and is saved."""

    trial: Trial
    answer: SizeAnswer
    """What is known so far."""


@dataclass(frozen=True, kw_only=True)
class SweepBegan:
    """Every point is checked; none has run yet."""

    folder: str
    workload: Workload
    """Of the first point."""
    points: int
    finished_points: int
    """Of an interrupted sweep that goes on."""


@dataclass(frozen=True, kw_only=True)
class PointBegan:
    """A point begins."""

    settings: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PointEnded:
    """A point has ended, and is saved."""

    point: SweepPoint


SizingEvent = SearchBegan | StorageProbed | TrialBegan | TrialEnded | SweepBegan | PointBegan | PointEnded
OnEvent = Callable[[SizingEvent], None]


def ignore(event: SizingEvent) -> None:
    """Show nothing."""
