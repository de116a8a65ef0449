"""The catalogue of metrics: what a kind of job measures, each metric declared once.

A kind declares its own (`metrics.CATALOGUE` in its folder). Tables, tiles, sweeps, comparisons, axes of figures and
docs/metrics.md take names, units, heads and digits from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "neither"]
ACCELERATOR = "accelerator"
"""What a rank emulates that a storage feeds: such jobs pass or fail, and have a price for each one fed."""
RUN = "run"
"""The phase of a job that has only one."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric."""

    name: str
    """In JSON; it ends in the unit."""
    title: str
    unit: str
    better: Better
    """Which of two values is in the storage's favour."""
    meaning: str
    """In one line."""
    axis: str = ""
    """With its unit, for axes and columns; where this is empty, title and unit."""
    head: str = ""
    """Of the narrow column that a sweep has of it; a metric without one is left out there."""
    digits: int | None = None
    """Decimals in that column; None: as many as say something."""
    has_interval: bool = False
    """That column shows its half width too."""
    is_compared: bool = True
    is_drawn: bool = False
    """Figures of sweeps and comparisons have a panel of it."""
    phase: str = ""
    """Of the metric that says how long a phase took: the verdict of a comparison is about it."""
    is_tile: bool = False
    """The page of a comparison begins with it; where no phase has a time, its verdict is about it."""

    @property
    def label(self) -> str:
        """Title with unit, on an axis or at a column."""
        return self.axis or f"{self.title}, {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The metrics of one kind of job, in the order in which they are shown."""

    metrics: tuple[Metric, ...]
    rank: str = "rank"
    """What one rank of it is called."""
    repetition: str = "repetition"
    """What is repeated in a run and has the spread: an epoch, a checkpoint."""
    phases: tuple[str, ...] = (RUN,)
    """What is limited by one thing each."""
    judged: str = ""
    """The metric that is held against a threshold; empty for a job that neither passes nor fails."""
    note: str = ""
    """What a reader of its figures must know, a sentence."""

    def __getitem__(self, name: str) -> Metric:
        return next(metric for metric in self.metrics if metric.name == name)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    @property
    def compared(self) -> tuple[Metric, ...]:
        """Those of a comparison."""
        return tuple(metric for metric in self.metrics if metric.is_compared)

    @property
    def in_sweeps(self) -> tuple[Metric, ...]:
        """Those of a sweep's table."""
        return tuple(metric for metric in self.metrics if metric.head)

    @property
    def drawn(self) -> tuple[Metric, ...]:
        """Those that figures have panels of."""
        return tuple(metric for metric in self.metrics if metric.is_drawn)

    @property
    def times(self) -> tuple[Metric, ...]:
        """How long each phase took."""
        return tuple(metric for metric in self.metrics if metric.phase)

    @property
    def headlines(self) -> tuple[Metric, ...]:
        """What the verdict of a comparison is about, and its page begins with."""
        return tuple(metric for metric in self.metrics if metric.phase or metric.is_tile)

    @property
    def feeds_accelerators(self) -> bool:
        """Whether a storage feeds accelerators in it: so many of them, for a price."""
        return self.rank == ACCELERATOR

    def limited_by(self, phase: str) -> str:
        """Return what the row or column is called that says what limited a phase."""
        return "limited by" if phase == RUN else f"{phase} limited by"
