"""Searches, sweeps and several runs on one page, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.report.series import RunSeries
from tests.report.folders import write_size, write_sweep

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.report.figure_base import DESK, Canvas, Figure
from dlemu.studies.pages import points_of, write_page
from dlemu.studies.series import figures
from tests.report.test_figures import check_drawn, column

FIGURES = (figures.au_by_count, figures.throughput_by_count, figures.metrics_by_count)
Draw = Callable[[RunSeries, Canvas], Figure | None]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> RunSeries:
    found = points_of(str(write_sweep(tmp_path_factory.mktemp("sweep"))))
    assert isinstance(found, RunSeries)
    return found


@pytest.fixture(scope="module")
def size(tmp_path_factory: pytest.TempPathFactory) -> RunSeries:
    found = points_of(str(write_size(tmp_path_factory.mktemp("size"))))
    assert isinstance(found, RunSeries)
    return found


@pytest.mark.parametrize("draw", FIGURES)
def test_it_draws_both_and_nothing_from_nothing(draw: Draw, sweep: RunSeries, size: RunSeries) -> None:
    for series in (sweep, size):
        check_drawn(draw(series, DESK))
    assert draw(RunSeries("x", ()), DESK) is None


def test_each_drive_of_a_sweep_is_a_line_over_accelerators(sweep: RunSeries) -> None:
    assert sweep.axis == "accelerators"
    assert {sweep.line(point) for point in sweep.points} == {"data_folder=fast", "data_folder=slow"}
    each = figures.throughput_by_count(sweep, DESK)
    assert column(each, "value", line="data_folder=slow", at=16) == pytest.approx([450, 450 / 16])


def test_the_page_of_a_search_says_the_answer_and_why(tmp_path: Path) -> None:
    text = Path(write_page([str(write_size(tmp_path))])).read_text()
    for words in ("8 x h100 pass", "limited by: storage", "busy 99 %", "<dt>PASS</dt>", "Host node0"):
        assert words in text
    assert 'class="said verdict passed"' in text
    assert "<h1>handmade on h100: how many accelerators does this storage feed?</h1>" in text, (
        "a prediction is no storage"
    )


def test_the_page_of_a_sweep_names_the_points_that_failed(tmp_path: Path) -> None:
    text = Path(write_page([str(write_sweep(tmp_path))])).read_text()
    assert "no memory for 32 ranks" in text
    assert "8 of 11 passed, 1 did not complete" in text
