"""Several runs: as points on lines, for figures and tables, and two of them metric by metric."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datagen.errors import UserError
from dlemu.metrics.catalogue import Catalogue
from dlemu.report.units import short_names, with_interval
from dlemu.results.compared import Difference
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of, kind_of
from dlemu.results.measured import MeasuredRun
from dlemu.results.wording import scaled


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run, or all trials with one number of accelerators."""

    line: str
    """Name of the workload and accelerator; points of one line have the same."""
    settings: dict[str, str]
    figures: JobFigures
    folder: str = ""

    @property
    def ranks(self) -> int:
        """Number of ranks; in training, of accelerators."""
        return self.figures.ranks


@dataclass(frozen=True)
class RunSeries:
    """The points of several runs."""

    folder: str
    points: tuple[Point, ...]
    answer: Any = None
    """The result of the study that made the runs, such as a sweep; None for runs that the user put together."""
    run: MeasuredRun | None = None
    """One of the runs, for the properties that they share: host, storage, configuration."""

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a single run."""
        return self.run is not None and self.run.folder == self.folder

    @cached_property
    def catalogue(self) -> Catalogue:
        """The metrics of the runs; raises UserError if their kind of job is not installed."""
        return catalogue_of(self.points[0].figures.kind) if self.points else Catalogue(metrics=())

    @property
    def counted(self) -> str:
        """Plural noun for the ranks of the runs, such as accelerators."""
        return f"{self.catalogue.rank}s"

    @property
    def scaled(self) -> str:
        """What a scale made of the samples, as a phrase after accelerators, if it is the same for all runs."""
        phrases = {scaled(point.figures.sample_divisor) for point in self.points}
        return phrases.pop() if len(phrases) == 1 else ""

    @property
    def axis(self) -> str:
        """The x axis: the number of ranks if it varies, else the first setting with several values."""
        if len({point.ranks for point in self.points}) > 1:
            return self.counted
        keys = list(dict.fromkeys(key for point in self.points for key in point.settings))
        return next((key for key in keys if len(self._values(key)) > 1), self.counted)

    def position(self, point: Point) -> float | str:
        """Return a point's value on the x axis: a number if all values are numbers."""
        if self.axis == self.counted:
            return point.ranks
        numeric = all(_is_number(value) for value in self._values(self.axis))
        if self.axis not in point.settings:
            return ""
        return float(point.settings[self.axis]) if numeric else self.shown(point, self.axis)

    @property
    def judged(self) -> str:
        """The metric to draw beside the threshold: the one that decides, where all points have it."""
        catalogue = self.catalogue
        names = (catalogue.decisive, catalogue.judged, catalogue.fallback)
        everywhere = (name for name in names if all(name in point.figures.metrics for point in self.points))
        return next(everywhere, catalogue.judged)

    @property
    def threshold_percent(self) -> float | None:
        """The AU at which a run passes; None if no run has a threshold, or if it is not for the drawn metric."""
        if self.catalogue.fallback and self.judged == self.catalogue.fallback:
            return None
        known = (point.figures.threshold_percent for point in self.points)
        return next((value for value in known if value is not None), None)

    def line(self, point: Point) -> str:
        """Return the name of the line that a point is on: workload and settings that differ between lines."""
        varied = [key for key in point.settings if key not in (self.axis, "ranks") and len(self._values(key)) > 1]
        named = [f"{key.rpartition('.')[2]}={self.shown(point, key)}" for key in varied]
        several = len({other.line for other in self.points}) > 1
        return ", ".join([point.line, *named] if several or not named else named)

    def shown(self, point: Point, key: str) -> str:
        """Return the displayed value of a setting: for paths, the part in which they differ."""
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
    """Return the point of a run."""
    line = " ".join(filter(None, [figures.workload, figures.accelerator])) + scaled(figures.sample_divisor)
    return Point(line=line, settings=settings, figures=figures, folder=folder)


def first_run(folder: str, points: Sequence[Point]) -> MeasuredRun | None:
    """Return the first run whose folder still exists and is intact; None where only the series was kept."""
    for point in points:
        path = os.path.join(folder, point.folder)
        with contextlib.suppress(UserError):  # the series has its own numbers; this is for hosts and settings
            kind = kind_of(path) if point.folder else None
            if kind is not None and kind.is_job:
                run: MeasuredRun = kind.load().read(path)
                return run
    return None


def difference_rows(
    metrics: Mapping[str, Difference], catalogue: Catalogue, *, intervals: bool, untold: str = ""
) -> list[tuple[str, ...]]:
    """Return a row per metric, in the catalogue's order: A, B (with their intervals, if wanted), A to B, and +-.

    `untold` replaces a difference that is within its half width.
    """
    rows = []
    for metric in catalogue:
        if (both := metrics.get(metric.name)) is None:
            continue
        sides = ((both.a, both.a_half_width), (both.b, both.b_half_width))
        shown = (with_interval(value, half if intervals else None, metric.unit) for value, half in sides)
        percent, width = both.difference_percent, both.half_width_percent
        change = "-" if percent is None else f"{percent:+.1f} %", "-" if width is None else f"{width:.1f}"
        if untold and both.distinct is False:
            change = untold, change[1]
        rows.append((f"{metric.title}, {metric.unit}", *shown, *change))
    return rows
