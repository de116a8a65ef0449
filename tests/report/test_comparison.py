"""Two storages on one page: its numbers are compare.json's, and its figures draw what is known of both."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from datagen.errors import UserError
from datagen.registry import find, names
from dlemu.config.schema import Metric, Model
from dlemu.report.units import at, short_names
from dlemu.results.answer_files import save_answer
from dlemu.studies.answers import COMPARE
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.page import OpenedComparison, open_page, print_comparison
from dlemu.studies.compare.sides import read_side
from tests.report.folders import write_run, write_size, write_sweep

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.report.drawing import picture_file
from dlemu.report.figure_base import DESK, PHONE, Canvas
from dlemu.studies.pages import write_page
from tests.report.test_figures import column, rows_of
from tests.report.test_page import read_page
from tests.runs import make_job

FOLDER = "dlemu.studies.compare.figures"
FIGURES = [name for name in names(FOLDER) if name != "times_of_both"]  # which training has not


def open_comparison(folder: str) -> OpenedComparison:
    comparison = open_page(folder).result
    assert isinstance(comparison, OpenedComparison)
    return comparison


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


@pytest.mark.parametrize("canvas", [DESK, PHONE])
@pytest.mark.parametrize("name", FIGURES)
def test_it_draws_what_is_known_and_nothing_else(
    name: str, canvas: Canvas, sweeps: OpenedComparison, runs: OpenedComparison, searches: OpenedComparison
) -> None:
    drawn = 0
    for comparison in (sweeps, runs, searches):
        figure = find(FOLDER, name, "draw")(comparison, canvas)
        if figure is not None:
            drawn += 1
            assert figure.caption.endswith(".")
            svg = picture_file(figure, "svg").decode()
            assert svg.count('class="mark-') > 3
            assert "role-axis-title" in svg
            assert "NaN" not in svg
    assert drawn >= 2


def test_both_sides_stand_over_their_accelerators_with_the_pass_line(
    searches: OpenedComparison, sweeps: OpenedComparison
) -> None:
    figure = find(FOLDER, "au_of_both", "draw")(searches, DESK)
    assert set(column(figure, "level")) == {90.0}
    for name, side in zip(searches.names, searches.answer.sides, strict=True):
        expected = [tried.figures.mean("au_sustained_percent") for tried in side.runs]
        assert set(expected) <= set(column(figure, "value", line=name))
    assert sweeps.names == ("A: fast", "B: slow")
    figure = find(FOLDER, "metrics", "draw")(sweeps, DESK)
    assert 0.2 + 1.6 in column(figure, "value", line="B: slow", at=16)  # the latency of 16 accelerators


def test_differences_are_drawn_with_their_intervals(runs: OpenedComparison, sweeps: OpenedComparison) -> None:
    differences = runs.answer.runs[0].metrics.values()
    figure = find(FOLDER, "metric_differences", "draw")(runs, DESK)
    drawn = {row["percent"]: row["high"] - row["low"] for row in rows_of(figure) if "percent" in row}
    expected = {one.difference_percent: 2 * (one.half_width_percent or 0) for one in differences}
    assert drawn == pytest.approx(expected)
    figure = find(FOLDER, "metric_differences", "draw")(sweeps, DESK)
    last = sweeps.answer.runs[-1]
    assert last.metrics["total_seconds"].difference_percent in column(figure, "value", at=last.ranks[0])


def test_the_plan_is_drawn_for_both_sides(runs: OpenedComparison, sweeps: OpenedComparison) -> None:
    plan = runs.answer.runs[0].plan
    assert plan is not None
    hours_and_models = [*plan.hours_per_model, *plan.models_per_year]
    assert column(find(FOLDER, "year_plan", "draw")(runs, DESK), "value") == hours_and_models
    drawn = column(find(FOLDER, "year_plan", "draw")(sweeps, DESK), "value", at=16)
    last = next(pair.plan for pair in sweeps.answer.runs if pair.ranks == (16, 16))
    assert last is not None
    assert set(drawn) == {*last.hours_per_model, last.days_saved_per_year}


@pytest.mark.parametrize("kind", ["sweeps", "runs", "searches"])
def test_every_number_that_stands_out_is_the_files(kind: str, request: pytest.FixtureRequest) -> None:
    comparison: OpenedComparison = request.getfixturevalue(kind)
    page = Path(write_page([comparison.folder]))
    read = read_page(page)
    saved = json.loads((page.parent / "compare.json").read_text())
    assert len(read.numbers) >= 4
    for key, value in read.numbers:
        assert float(value) == at(saved, key)
    assert saved["verdict"] in " ".join(read.words)
    assert page.stat().st_size < 1_500_000


def test_no_year_follows_from_runs_that_did_other_work(tmp_path: Path) -> None:
    few, many = (write_run(tmp_path / f"{ranks}", telemetry=False, ranks=ranks) for ranks in (2, 3))
    comparison = open_comparison(str(write_comparison(tmp_path / "both", few, many)))
    out = io.StringIO()
    print_comparison(comparison.answer, Console(file=out, width=100))
    page = read_page(Path(write_page([comparison.folder])))
    for words in (out.getvalue(), " ".join(page.words)):
        assert "not comparable: A had 2 accelerators, B 3" in words
        assert not re.search("a year|models|saved", words)
    before, _, _ = out.getvalue().partition("total time")
    assert "not comparable: A had 2 accelerators, B 3" in before, "the reason stands before any figure"
    assert not any("plan" in key or "total_seconds" in key for key, _ in page.numbers)


def test_axes_of_au_end_at_100(runs: OpenedComparison, sweeps: OpenedComparison) -> None:
    for comparison in (runs, sweeps):
        drawn = json.dumps(find(FOLDER, "metrics", "draw")(comparison, DESK).chart.to_dict())
        titled = re.findall(r'"scale": \{"domain": \[([^]]*)\][^}]*\}, "title": "(?:sustained )?AU, %"', drawn)
        assert titled
        assert all(float(domain.split(",")[1]) == 100 for domain in titled)


@pytest.mark.parametrize(("distinct", "said"), [(True, True), (None, True), (False, False)])
def test_no_days_are_saved_by_a_difference_that_is_not_shown(
    runs: OpenedComparison, tmp_path: Path, distinct: bool | None, said: bool
) -> None:
    """Null is a run of one epoch, whose uncertainty is not known."""
    found = json.loads((Path(runs.folder) / "compare.json").read_text())
    found["runs"][0]["metrics"]["total_seconds"]["distinct"] = distinct
    found["runs"][0]["epochs"] = [2, 2]
    (tmp_path / "compare.json").write_text(json.dumps(found))
    keys = [key for key, _ in read_page(Path(write_page([str(tmp_path)]))).numbers]
    assert any("days_saved" in key for key in keys) == said
    out = io.StringIO()
    print_comparison(open_comparison(str(tmp_path)).answer, Console(file=out, width=100))
    assert ("what B trains in a year" in out.getvalue()) == said


def test_what_is_not_the_storages_is_said(tmp_path: Path) -> None:
    reader = make_job().workload.reader
    a = write_run(tmp_path / "a", telemetry=False, reader=replace(reader, read_threads=4), model=Model(name="unet3d"))
    b = write_run(tmp_path / "b", telemetry=False, reader=replace(reader, read_threads=8))
    issues = " ".join(open_comparison(str(write_comparison(tmp_path / "c", a, b))).answer.issues)
    assert "read_threads was 4 for A and 8 for B" in issues
    assert "A ran unet3d and B handmade" in issues


def test_one_accelerator_is_no_plural(tmp_path: Path) -> None:
    one, two = (
        write_run(tmp_path / name, telemetry=False, ranks=1, steps=steps) for name, steps in (("a", 9), ("b", 12))
    )
    comparison = open_comparison(str(write_comparison(tmp_path / "c", one, two)))
    out = io.StringIO()
    print_comparison(comparison.answer, Console(file=out, width=100))
    page = Path(write_page([comparison.folder])).read_text()
    for text in (out.getvalue(), page):
        assert "1 accelerator" in text
        assert not re.search(r"\b1 accelerators", text)


def test_a_side_without_telemetry_or_runs_makes_a_page_too(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep")
    answer = json.loads((sweep / "sweep.json").read_text())
    for point in answer["points"]:
        if point["figures"]:
            unknown = ("device_mb_per_second", "max_device_mb_per_second", "mean_device_read_latency_ms")
            point["figures"] |= dict.fromkeys(unknown) | {"total_seconds": None, "au_percent": None}
    (sweep / "sweep.json").write_text(json.dumps(answer))
    text = Path(write_page([str(write_comparison(tmp_path / "c", sweep))])).read_text()
    assert 'id="metrics"' in text
    assert 'id="year_plan"' not in text


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("{}", "has no schema_version"),
        ('{"schema_version": 1, "runs": []}', "is damaged"),
        ('{"schema_version": 1, "a": "x", "b": "y", "sides": 3}', "is damaged"),
    ],
)
def test_a_damaged_comparison_is_told_by_name(tmp_path: Path, content: str, wrong: str) -> None:
    (tmp_path / "compare.json").write_text(content)
    with pytest.raises(UserError, match=rf"compare\.json {wrong}"):
        open_comparison(str(tmp_path))


def test_a_comparison_shares_no_page(runs: OpenedComparison, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't share a page"):
        write_page([runs.folder, runs.folder], str(tmp_path / "both.html"))


@pytest.mark.parametrize(
    ("a", "b", "short"),
    [
        ("/mnt/new/unet3d", "/mnt/old/unet3d", ("new", "old")),
        ("results/unet3d/x", "results/unet3d/y/", ("x", "y")),
        ("fast", "slow", ("fast", "slow")),
        ("a/b", "a/b", ("a/b", "a/b")),
        ("/mnt/nvme", "/mnt/nvme/old", ("/mnt/nvme", "/mnt/nvme/old")),
        ("0.5", "16", ("0.5", "16")),
        ("/mnt/a", "b", ("/mnt/a", "b")),
    ],
)
def test_sides_are_called_by_what_differs(a: str, b: str, short: tuple[str, str]) -> None:
    assert short_names([a, b]) == dict(zip((a, b), short, strict=True))
