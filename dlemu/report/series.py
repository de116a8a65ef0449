"""Several runs side by side, as points of lines: what figures and tables draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlemu.metrics.catalogue import Catalogue
from dlemu.report.units import short_names
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.measured import MeasuredRun


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run, or all trials of one count of accelerators."""

    line: str
    """Points of one line differ only in what the axis says."""
    settings: dict[str, str]
    figures: JobFigures
    folder: str = ""

    @property
    def ranks(self) -> int:
        """How many ranks it had: of training, accelerators."""
        return self.figures.ranks


@dataclass(frozen=True)
class RunSeries:
    """What several runs showed."""

    folder: str
    points: tuple[Point, ...]
    answer: Any = None
    """None for runs that a user put side by side."""
    run: MeasuredRun | None = None
    """One of the runs, for what they have in common: host, storage, configuration."""

    @property
    def is_run(self) -> bool:
        """Whether it is one run, and no list of several."""
        return self.run is not None and self.run.folder == self.folder

    @cached_property
    def catalogue(self) -> Catalogue:
        """The metrics of its runs; raises UserError where their kind of job is not installed."""
        return catalogue_of(self.points[0].figures.kind) if self.points else Catalogue(metrics=())

    @property
    def counted(self) -> str:
        """What the ranks of its runs are called, in the plural."""
        return f"{self.catalogue.rank}s"

    @property
    def axis(self) -> str:
        """What the points of a line differ in: ranks, or else the first setting that has several values."""
        if len({point.ranks for point in self.points}) > 1:
            return self.counted
        keys = list(dict.fromkeys(key for point in self.points for key in point.settings))
        return next((key for key in keys if len(self._values(key)) > 1), self.counted)

    def position(self, point: Point) -> float | str:
        """Return where a point stands on the axis; numbers where all its values are."""
        if self.axis == self.counted:
            return point.ranks
        numeric = all(_is_number(value) for value in self._values(self.axis))
        if self.axis not in point.settings:
            return ""
        return float(point.settings[self.axis]) if numeric else self.shown(point, self.axis)

    @property
    def threshold_percent(self) -> float | None:
        """The AU at which a run passes, None where nothing says it."""
        known = (point.figures.threshold_percent for point in self.points)
        return next((value for value in known if value is not None), None)

    def line(self, point: Point) -> str:
        """Return the name of a point's line: what was the same along it and differs between lines."""
        varied = [key for key in point.settings if key not in (self.axis, "ranks") and len(self._values(key)) > 1]
        named = [f"{key.rpartition('.')[2]}={self.shown(point, key)}" for key in varied]
        several = len({other.line for other in self.points}) > 1
        return ", ".join([point.line, *named] if several or not named else named)

    def shown(self, point: Point, key: str) -> str:
        """Return what a setting of a point is called: of paths, the part in which they differ."""
        value = point.settings[key]
        return short_names(sorted(self._values(key) - {""})).get(value, value)

    def _values(self, key: str) -> set[str]:
        return {point.settings.get(key, "") for point in self.points}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def point_of(figures: JobFigures, settings: dict[str, str], folder: str = "") -> Point:
    """Return a run as a point."""
    line = " ".join(filter(None, [figures.workload, figures.accelerator]))
    return Point(line=line, settings=settings, figures=figures, folder=folder)
