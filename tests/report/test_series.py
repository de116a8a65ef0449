"""Searches, sweeps and several runs on one page, and their figures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from datagen.errors import UserError
from datagen.registry import find, names
from dlemu.jobs.training.result import Run
from dlemu.report.series import RunSeries, point_of
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import SIZE, SizeAnswer, read_sweep
from dlemu.studies.series.page import _sweep_verdict, print_answer, print_sweep, series_page
from dlemu.studies.series.series import open_together, points_of
from tests.report.folders import write_checkpoint_sweep, write_run, write_size, write_sweep

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.report.drawing import picture_file
from dlemu.report.figure_base import DESK, PHONE, Canvas
from dlemu.studies.pages import write_page
from dlemu.studies.series.figures._lines import metric_rows
from tests.report.test_figures import column

FOLDER = "dlemu.studies.series.figures"
BY_METRIC = "metrics_by_count"
FIGURES = names(FOLDER)


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


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("canvas", [DESK, PHONE])
def test_it_draws_both_and_nothing_from_nothing(name: str, canvas: Canvas, sweep: RunSeries, size: RunSeries) -> None:
    for series in (sweep, size):
        figure = find(FOLDER, name, "draw")(series, canvas)
        assert figure.caption.endswith(".")
        svg = picture_file(figure, "svg").decode()
        assert svg.count('class="mark-') > 3
        assert "NaN" not in svg
    assert find(FOLDER, name, "draw")(RunSeries("x", ()), canvas) is None


@pytest.mark.parametrize("canvas", [DESK, PHONE])
def test_a_sweep_of_checkpoints_is_drawn_by_its_metrics(canvas: Canvas, tmp_path: Path) -> None:
    series = points_of(str(write_checkpoint_sweep(tmp_path)))
    assert isinstance(series, RunSeries)
    drawn = [name for name in names(FOLDER) if find(FOLDER, name, "draw")(series, canvas) is not None]
    assert drawn == [BY_METRIC]
    figure = find(FOLDER, BY_METRIC, "draw")(series, canvas)
    assert figure.title == "Metrics against ranks"
    assert set(column(figure, "value", line="writers=2", at=2)) == {4.0, 8.0, 2.5, 1.25}
    assert set(column(figure, "verdict")) == {"pass"}, "no point is hollow"
    assert "NaN" not in picture_file(figure, "svg").decode()


def test_the_page_of_a_sweep_of_checkpoints_has_its_points(tmp_path: Path) -> None:
    text = Path(write_page([str(write_checkpoint_sweep(tmp_path))])).read_text()
    for words in ("8 of 9</strong> points completed", "a full disk", "8.000 +- 0.400", "Metrics against ranks"):
        assert words in text, words


def test_a_run_of_another_tool_that_kept_no_steps_is_drawn_by_its_whole_epochs() -> None:
    """Else one side has no line, and the title says that none passes on it."""
    known = {"au_whole_percent": Value(80.0)}
    ours = known | {"au_percent": Value(95.0), "au_sustained_percent": Value(94.0)}
    points = tuple(
        replace(
            point_of(
                JobFigures(
                    kind="training",
                    workload="unet3d",
                    ranks=ranks,
                    passed=True,
                    threshold_percent=90.0,
                    metrics=metrics,
                ),
                {},
            ),
            line=line,
        )
        for line, ranks, metrics in (("A", 4, ours), ("B", 7, known))
    )
    series = RunSeries("folder", points)
    assert (series.judged, series.threshold_percent) == ("au_whole_percent", None)
    figure = find(FOLDER, "au_by_count", "draw")(series, DESK)
    assert figure.title == "AU, whole epochs against accelerators: 4 pass (A); 7 pass (B)"
    assert set(column(figure, "value")) == {80.0}
    alone = RunSeries("folder", points[:1])
    assert (alone.judged, alone.threshold_percent) == ("au_sustained_percent", 90.0)


def test_the_interval_of_a_percentage_is_drawn_from_0_to_100() -> None:
    def ends(metric: str, value: Value) -> tuple[float, float]:
        run = JobFigures(kind="checkpoint", workload="llama", ranks=2, metrics={metric: value})
        (row,) = metric_rows(RunSeries("folder", (point_of(run, {}),)), metric)
        return row["low"], row["high"]

    assert ends("write_fsync_percent", Value(95.0, 8.0)) == (87.0, 100.0)
    assert ends("write_fsync_percent", Value(5.0, 8.0)) == (0.0, 13.0)
    assert ends("write_slowest_seconds", Value(99.0, 8.0)) == (91.0, 107.0)


def test_a_search_is_drawn_with_its_intervals_and_its_verdicts(size: RunSeries) -> None:
    assert isinstance(size.answer, SizeAnswer)
    assert size.judged == "au_sustained_percent"
    assert not metric_rows(size, "au_percent"), "that of the counted steps is another AU"
    drawn, counts = metric_rows(size, size.judged), size.answer.counts
    assert [row["at"] for row in drawn] == [4, 8, 9]
    assert [row["value"] for row in drawn] == [count.au_sustained_percent for count in counts]
    assert [row["verdict"] for row in drawn] == ["pass", "pass", "fail"]
    ends = [
        (count.au_sustained_percent - count.half_width_percent, count.au_sustained_percent + count.half_width_percent)
        for count in counts
    ]
    assert [row["low"] for row in drawn] == pytest.approx([low for low, _ in ends])
    assert [row["high"] for row in drawn] == pytest.approx([min(high, 100.0) for _, high in ends])
    figure = find(FOLDER, "au_by_count", "draw")(size, DESK)
    assert set(column(figure, "level")) == {90.0}
    assert {row["value"] for row in drawn} <= set(column(figure, "value"))


def test_each_drive_of_a_sweep_is_a_line_over_accelerators(sweep: RunSeries) -> None:
    assert sweep.axis == "accelerators"
    assert {sweep.line(point) for point in sweep.points} == {"data_folder=fast", "data_folder=slow"}
    each = find(FOLDER, "throughput_by_count", "draw")(sweep, DESK)
    assert column(each, "value", line="data_folder=slow", at=16) == pytest.approx([450, 450 / 16])


def test_what_a_sweep_varies_is_its_axis(tmp_path: Path) -> None:
    answer = json.loads((write_sweep(tmp_path) / "sweep.json").read_text())
    point = answer["points"][0]
    for values, places in ((("2", "8"), [2.0, 8.0]), (("npz", "hdf5"), ["npz", "hdf5"])):
        points = [point | {"settings": {"ranks": "1", "reader.x": value}} for value in values]
        (tmp_path / "sweep.json").write_text(json.dumps(answer | {"points": points}))
        series = points_of(str(tmp_path))
        assert isinstance(series, RunSeries)
        assert series.axis == "reader.x"
        assert [series.position(one) for one in series.points] == places
        assert picture_file(find(FOLDER, "au_by_count", "draw")(series, DESK), "svg")


def test_runs_side_by_side_are_one_line_over_their_ranks(tmp_path: Path) -> None:
    folders = [str(write_run(tmp_path / str(ranks), telemetry=False, ranks=ranks)) for ranks in (1, 2, 3)]
    series = open_together(folders)
    assert [point.ranks for point in series.points] == [1, 2, 3]
    assert {series.line(point) for point in series.points} == {"handmade"}
    one = points_of(folders[0]).run
    assert isinstance(one, Run)
    assert series.points[0].figures.mean("au_percent") == (one.summary.au and one.summary.au.mean)
    assert series.threshold_percent == 90


def test_the_page_of_a_search_says_the_answer_and_why(tmp_path: Path) -> None:
    text = Path(write_page([str(write_size(tmp_path))])).read_text()
    for words in (
        "8 x h100 pass",
        "limited by: storage",
        "busy 99 %",
        'value="8" data-key="max_accelerators"',
        "Host node0",
    ):
        assert words in text
    assert 'class="verdict passed"' in text
    assert "<h1>How many accelerators does this storage feed? handmade h100</h1>" in text, "a prediction is no storage"


def test_a_search_whose_run_is_damaged_keeps_its_page(tmp_path: Path) -> None:
    folder = write_size(tmp_path)
    (folder / "trial-01" / "steps.parquet").write_bytes(b"no parquet")
    text = Path(write_page([str(folder)])).read_text()
    assert "8 x h100 pass" in text
    assert "Host node0" not in text


def test_a_host_that_gave_out_first_is_said_with_what_the_storage_could_feed(tmp_path: Path) -> None:
    folder = write_size(tmp_path)
    answer = json.loads((folder / "size.json").read_text())
    answer |= {"limited_by": {"what": "host CPU", "evidence": ["no core was free"]}, "storage_mb_per_second": 200.0}
    answer |= {"host_only": {"storage_could_feed": 22}, "at_least": 9, "passed": False}
    (folder / "size.json").write_text(json.dumps(answer))
    text = Path(write_page([str(folder)])).read_text()
    assert "The host reached its limit first, not the storage" in text
    assert "200.0 MB/s, enough for about 22 accelerators" in text
    assert "FAIL</strong>: 8 of 9 wanted. 8 x h100 pass" in text


def test_a_narrow_terminal_loses_nothing_of_a_sweep(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path)
    answer = json.loads((folder / "sweep.json").read_text())
    answer["points"].pop()  # the one that failed has other settings
    for point in answer["points"]:
        point["settings"]["dataset.data_folder"] = f"/mnt/{point['settings']['dataset.data_folder']}/unet3d"
    (folder / "sweep.json").write_text(json.dumps(answer))
    swept = read_sweep(str(folder))
    assert swept is not None
    printed = io.StringIO()
    print_sweep(swept, str(folder), Console(width=30, file=printed))
    table = [line.split() for line in printed.getvalue().splitlines()]
    for drive, ranks, samples, verdict in (
        ("fast", "1", "30.00", "pass"),
        ("slow", "16", "225.00", "fail: storage"),
    ):
        assert any(
            line[:2] == [drive, ranks] and samples in line and line[-len(verdict.split()) :] == verdict.split()
            for line in table
        )


def test_the_terminal_says_the_answer_of_a_search_and_why(tmp_path: Path) -> None:
    answer = read_answer(str(write_size(tmp_path)), SIZE, SizeAnswer)
    assert answer is not None
    printed = io.StringIO()
    print_answer(answer, "results/x", Console(width=100, file=printed))
    lines = printed.getvalue().splitlines()
    assert any(line.split() == ["8", "98.15", "97.35", "to", "98.95", "2", "77.60", "pass"] for line in lines)
    for line in (
        "- the device was busy 99 % of the time",
        "- for an AU of 90 %, 9 would need 81.00 MB/s; in trials and read probe the storage delivered at most 80.00 "
        "MB/s",
        "8 x h100 pass (au 98.2 % +- 0.8), 9 fail (88.2 % +- 0.8): limited by storage",
        "5 trials took 75 s; every count up to the edge at full length would take 15 min",
        "results: results/x",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("passed", "limit", "words"),
    [
        (True, "storage", "pass"),
        (False, "storage", "fail: storage"),
        (None, "host CPU", "no verdict: host CPU"),
        (None, "nothing", "no verdict"),
    ],
)
def test_a_verdict_names_what_limited_the_run_unless_nothing_did(passed: bool | None, limit: str, words: str) -> None:
    figures = JobFigures(kind="training", workload="unet3d", ranks=1, passed=passed, limited_by={"run": limit})
    assert _sweep_verdict(figures).text == words


def test_the_page_of_a_sweep_names_the_points_that_failed(tmp_path: Path) -> None:
    text = Path(write_page([str(write_sweep(tmp_path))])).read_text()
    assert "no memory for 32 ranks" in text
    assert "8 of 11</strong> runs passed, 1 did not complete" in text


@pytest.mark.parametrize("name", ["size.json", "sweep.json"])
def test_a_damaged_answer_is_told_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"schema_version": 1, "complete": true}')
    with pytest.raises(UserError, match=f"{name} is damaged"):
        points_of(str(tmp_path))


def test_a_prediction_beside_a_search_is_no_second_storage(tmp_path: Path) -> None:
    series = points_of(str(write_size(tmp_path)))
    assert isinstance(series, RunSeries)
    beside = replace(series, points=(*series.points, replace(series.points[0], line="predicted")))
    assert series_page(beside, "").title == "How many accelerators does this storage feed? handmade h100"
