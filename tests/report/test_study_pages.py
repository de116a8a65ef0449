"""The pages of searches, sweeps and comparisons, and their figure: it draws what is known, in numbers of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlemu.config.schema import Metric
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import kind_of, read_result
from dlemu.studies.answers import COMPARE
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.page import screen
from dlemu.studies.compare.sides import read_side
from tests.report.folders import write_run, write_size, write_sweep
from tests.shown import details

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.report.figure_base import Figure
from dlemu.report.page import open_page, write_page
from dlemu.studies.figures import Point, charts
from tests.report.test_figures import check_drawn, column
from tests.report.test_page import read_page


def write_comparison(folder: Path, *compared: Path) -> Path:
    """Leave what `dlemu compare` leaves."""
    a, b = (side for one in compared for side in read_side(str(one)))
    save_answer(str(folder), COMPARE, compare(a, b))
    return folder


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each study."""
    folder = tmp_path_factory.mktemp("studies")
    size, sweep = write_size(folder / "size"), write_sweep(folder / "sweep")
    judged = Metric(cached=True)  # of runs without a verdict no year is planned
    runs = (write_run(folder / name, telemetry=False, ranks=2, epochs=3, metric=judged) for name in ("one", "two"))
    compared = {"sweeps": [sweep], "runs": runs, "searches": [size, write_size(folder / "other")]}
    both = {name: write_comparison(folder / f"both-{name}", *sides) for name, sides in compared.items()}
    return {"size": size, "sweep": sweep} | both


def drawn(folder: Path) -> dict[str, Figure]:
    return dict(open_page(str(folder)).draw())


@pytest.mark.parametrize("study", ["size", "sweep", "sweeps", "runs", "searches"])
def test_a_study_has_one_figure(study: str, studies: dict[str, Path]) -> None:
    ((name, figure),) = drawn(studies[study]).items()
    assert name == "by_count"
    check_drawn(figure)


def test_each_drive_of_a_sweep_is_a_line_over_accelerators(studies: dict[str, Path]) -> None:
    for study, name in (("sweep", "data_folder=slow"), ("sweeps", "B: slow")):
        figure = drawn(studies[study])["by_count"]
        assert figure.title == "AU, counted steps against accelerators"
        assert 46.875 in column(figure, "value", line=name, at=16)


def test_two_runs_of_which_one_lacks_its_time_are_drawn_by_what_both_have() -> None:
    whole = JobFigures(kind="training", workload="x", ranks=2, metrics={"total_seconds": Value(9.0)})
    whole.metrics["samples_per_second"] = Value(5.0)
    killed = replace(whole, metrics={"samples_per_second": Value(4.0)})
    ((_, figure),) = charts([Point("A", {}, whole), Point("B", {}, killed)])
    assert set(column(figure, "value")) == {4.0, 5.0}


def test_the_page_of_a_search_says_the_answer_and_why(studies: dict[str, Path]) -> None:
    text = Path(write_page(str(studies["size"]))).read_text()
    for words in ("8 x h100 pass", "storage", "busy 99\N{NO-BREAK SPACE}%", "Environment: hosts"):
        assert words in text
    assert '<header class="passed">' in text
    assert '<h1><span class="word">answer</span>' in text
    assert "handmade on h100: how many accelerators does this storage feed?" in text


def test_a_point_that_failed_is_a_line_first_and_told_whole_in_the_details(studies: dict[str, Path]) -> None:
    kind, folder = kind_of(str(studies["sweep"])), str(studies["sweep"])
    assert kind is not None
    page = open_page(folder)
    assert page.screen.notes == ["dataset.data_folder=slow ranks=32 failed: no memory for 32 ranks"]
    assert "8 of 11 passed, 1 did not complete" in page.screen.lines[0].value
    assert "use fewer" in details("sweep", kind.read(folder), folder)


@pytest.mark.parametrize("study", ["sweeps", "runs", "searches"])
def test_a_comparison_begins_with_what_the_terminal_says_first(study: str, studies: dict[str, Path]) -> None:
    page = Path(write_page(str(studies[study])))
    words, answer = " ".join(read_page(page).words), read_result(str(studies[study]))
    assert all(clause.replace("+-", "±") in words for clause in answer.verdict.split("; "))
    assert all(line.value in words for line in screen(answer, "").lines)
    assert page.stat().st_size < 1_500_000


def test_no_year_follows_from_runs_that_did_other_work(tmp_path: Path) -> None:
    few, many = (write_run(tmp_path / f"{ranks}", telemetry=False, ranks=ranks) for ranks in (2, 3))
    folder = str(write_comparison(tmp_path / "both", few, many))
    for words in (details("compare", read_result(folder)), " ".join(read_page(Path(write_page(folder))).words)):
        assert "ranks is 2 for A and 3 for B" in words.partition("total time")[0], "the reason stands before any figure"
        assert not re.search("a year|models|saved", words)


def with_distinct(folder: Path) -> Iterator[tuple[bool | None, str]]:
    """Yield what a comparison says where its difference in time is distinct, is not, and where that is not known."""
    answer = read_result(str(folder))
    (pair,) = answer.runs
    for width, distinct in ((0.0, True), (None, None), (1e9, False)):
        time = replace(pair.metrics["total_seconds"], difference_percent=5.0, half_width_percent=width)
        changed = replace(pair, metrics=pair.metrics | {"total_seconds": time})
        yield distinct, details("compare", replace(answer, runs=(changed,)))


def test_no_days_are_saved_by_a_difference_that_is_not_shown(studies: dict[str, Path]) -> None:
    for distinct, said in with_distinct(studies["runs"]):
        assert ("what B trains in a year" in said) == (distinct is not False)
