"""The points of a sweep, and its page."""

from __future__ import annotations

from dlemu.report.page import Opened
from dlemu.report.series import RunSeries, point_of
from dlemu.studies.answers import read_sweep
from dlemu.studies.series.page import FIGURES, config_of, series_page
from dlemu.studies.series.series import first_run


def points(folder: str) -> RunSeries:
    """Return the points of a sweep; raises UserError."""
    answer = read_sweep(folder)
    assert answer is not None  # the kind was recognised by this file
    found = tuple(
        point_of(point.figures, point.settings, point.folder) for point in answer.points if point.figures is not None
    )
    return RunSeries(folder, found, answer, first_run(folder, found))


def open_page(folder: str) -> Opened:
    """Return the sweep in a folder with its page; raises UserError."""
    series = points(folder)
    return Opened(series, series_page(series, config_of(series)), FIGURES)
