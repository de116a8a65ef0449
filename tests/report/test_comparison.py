"""Two storages on one page: its numbers are compare.json's, and its figures draw what is known of both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.config.schema import Metric
from dlemu.results.answer_files import save_answer
from dlemu.studies.answers import COMPARE, read_comparison
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.figures import OpenedComparison
from dlemu.studies.compare.page import screen
from dlemu.studies.compare.sides import read_side
from tests.report.folders import write_run, write_size, write_sweep
from tests.shown import details

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.report.figure_base import DESK, Canvas, Figure
from dlemu.studies.compare import figures
from dlemu.studies.pages import write_page
from tests.report.test_figures import check_drawn
from tests.report.test_page import read_page

FIGURES = (figures.au_of_both, figures.metrics, figures.metric_differences, figures.year_plan, figures.accelerators_fed)
Draw = Callable[[OpenedComparison, Canvas], Figure | None]


def open_comparison(folder: str) -> OpenedComparison:
    return OpenedComparison(folder, read_comparison(folder))


def write_comparison(folder: Path, *compared: Path) -> Path:
    """Leave what `dlemu compare` leaves."""
    a, b = (side for one in compared for side in read_side(str(one)))
    save_answer(str(folder), COMPARE, compare(a, b))
    return folder


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> OpenedComparison:
    folder = tmp_path_factory.mktemp("sweeps")
    return open_comparison(str(write_comparison(folder / "both", write_sweep(folder / "sweep"))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> OpenedComparison:
    folder = tmp_path_factory.mktemp("runs")
    judged = Metric(cached=True)  # of runs without a verdict no year is planned
    made = [
        write_run(folder / name, telemetry=False, ranks=2, epochs=epochs, metric=judged)
        for name, epochs in (("new", 2), ("old", 3))
    ]
    return open_comparison(str(write_comparison(folder / "both", *made)))


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> OpenedComparison:
    folder = tmp_path_factory.mktemp("searches")
    made = [write_size(folder / name) for name in ("a", "b")]
    return open_comparison(str(write_comparison(folder / "both", *made)))


@pytest.mark.parametrize("draw", FIGURES)
def test_it_draws_what_is_known_and_nothing_else(
    draw: Draw, sweeps: OpenedComparison, runs: OpenedComparison, searches: OpenedComparison
) -> None:
    drawn = [figure for one in (sweeps, runs, searches) if (figure := draw(one, DESK)) is not None]
    assert len(drawn) >= 2
    for figure in drawn:
        check_drawn(figure)


@pytest.mark.parametrize("kind", ["sweeps", "runs", "searches"])
def test_it_begins_with_what_the_terminal_says_first(kind: str, request: pytest.FixtureRequest) -> None:
    comparison: OpenedComparison = request.getfixturevalue(kind)
    page = Path(write_page([comparison.folder]))
    words = " ".join(read_page(page).words)
    assert json.loads((page.parent / "compare.json").read_text())["verdict"] in words
    assert all(line.value in words for line in screen(comparison.answer, "").lines)
    assert page.stat().st_size < 1_500_000


def test_no_year_follows_from_runs_that_did_other_work(tmp_path: Path) -> None:
    few, many = (write_run(tmp_path / f"{ranks}", telemetry=False, ranks=ranks) for ranks in (2, 3))
    comparison = open_comparison(str(write_comparison(tmp_path / "both", few, many)))
    out = details("comparison", comparison.answer)
    page = read_page(Path(write_page([comparison.folder])))
    for words in (out, " ".join(page.words)):
        assert "A had 2 accelerators, B 3" in words.partition("total time")[0], "the reason stands before any figure"
        assert not re.search("a year|models|saved", words)


@pytest.mark.parametrize(("distinct", "said"), [(True, True), (None, True), (False, False)])
def test_no_days_are_saved_by_a_difference_that_is_not_shown(
    runs: OpenedComparison, tmp_path: Path, distinct: bool | None, said: bool
) -> None:
    """Null is a run of one epoch, whose uncertainty is not known."""
    found = json.loads((Path(runs.folder) / "compare.json").read_text())
    found["runs"][0]["metrics"]["total_seconds"]["distinct"] = distinct
    found["runs"][0]["epochs"] = [2, 2]
    (tmp_path / "compare.json").write_text(json.dumps(found))
    lines = [line.value for line in screen(open_comparison(str(tmp_path)).answer, "").lines]
    assert any("what B trains in a year" in line for line in lines) == said
    assert ("what B trains in a year" in " ".join(read_page(Path(write_page([str(tmp_path)]))).words)) == said
