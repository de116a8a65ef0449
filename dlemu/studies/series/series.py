"""Collects the points of several results for one page."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace

from datagen.errors import UserError
from dlemu.report.series import Point, RunSeries
from dlemu.results.kinds import kind_of, read_result
from dlemu.results.measured import MeasuredRun


def open_together(folders: Sequence[str]) -> RunSeries:
    """Read several results as one series; the points of a search or sweep are named after its folder.

    Raises UserError for a result without points, and for runs of different kinds.
    """
    points: list[Point] = []
    common: MeasuredRun | None = None
    for folder in folders:
        series = points_of(folder)
        common = common or series.run
        if series.is_run:
            points += [replace(point, folder=folder) for point in series.points]
        else:
            name = os.path.basename(os.path.abspath(folder))
            points += [_named(point, name, folder) for point in series.points]
    kinds = sorted({point.figures.kind for point in points})
    if len(kinds) > 1:
        raise UserError(f"{', '.join(folders)} hold different kinds of runs ({', '.join(kinds)}): make one page each")
    return RunSeries(", ".join(folders), tuple(points), None, common)


def points_of(folder: str) -> RunSeries:
    """Return the points of the result in a folder; raises UserError for a result that has none."""
    kind = kind_of(folder)
    if kind is None:
        read_result(folder)  # says what is missing
    assert kind is not None
    if not kind.points:
        raise UserError(f"{folder} holds {kind.noun}, which can't share a page: name it alone in `dlemu report`")
    series: RunSeries = kind.part("points")(folder)
    return series


def _named(point: Point, name: str, folder: str) -> Point:
    line = ": ".join(filter(None, [name, point.line]))
    return replace(point, line=line, folder=os.path.join(folder, point.folder))


def first_run(folder: str, points: Sequence[Point]) -> MeasuredRun | None:
    """Return the first run whose folder still exists and is intact; None where only the series was kept."""
    for point in points:
        path = os.path.join(folder, point.folder)
        with contextlib.suppress(UserError):  # the series has its own numbers; this is for hosts and settings
            kind = kind_of(path) if point.folder else None
            if kind is not None and kind.job:
                run: MeasuredRun = kind.part("read")(path)
                return run
    return None
