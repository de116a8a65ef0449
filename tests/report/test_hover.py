"""What a pointer on a figure shows, and what its title says, without a script."""

from __future__ import annotations

import html
import re

import pytest

from dlemu.report.drawing import pictures
from dlemu.report.series import Point, RunSeries
from dlemu.results.figures import JobFigures, Value

pytest.importorskip("altair", reason="pages need the extra `report`")
pytest.importorskip("vl_convert", reason="pages need the extra `report`")


def point(ranks: int, au: float, passed: bool | None, line: str = "unet3d h100") -> Point:
    metrics = {"au_percent": Value(au, 1.5)}
    figures = JobFigures(
        kind="training", workload="unet3d", ranks=ranks, passed=passed, threshold_percent=90.0, metrics=metrics
    )
    return Point(line=line, settings={}, figures=figures)


def picture(*points: Point) -> tuple[str, str]:
    """Return the title and the SVG of AU against accelerators."""
    drawn = pictures(RunSeries("results/x", points), "dlemu.studies.series.figures")
    found = next(one for one in drawn if one.name == "au_by_count")
    return found.title, found.desk_svg


def test_each_point_shows_its_values() -> None:
    _, svg = picture(point(1, 99.5, True), point(8, 83.1, False, "a <b>"))
    titles = {html.unescape(text) for text in re.findall(r"<title>([^<]*)</title>", svg)}
    assert titles == {
        "unet3d h100, 1 accelerator: 99.5 (98 to 100), pass",
        "a <b>, 8 accelerators: 83.1 (81.6 to 84.6), fail",
    }
    assert "aria-" not in svg
    assert "<script" not in svg
