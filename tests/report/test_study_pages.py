"""The pages of searches, sweeps and comparisons, and their figure; two runs of checkpoints side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.checkpoints.io_rows import READ
from dlemu.cli.compare import command
from dlemu.config.schema import Metric
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.parts import conditions, figures
from dlemu.jobs.checkpoint.summary import CATALOGUE
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import kind_of, read_result
from dlemu.results.measured import write_measured, write_summary
from dlemu.studies.answers import COMPARE, Comparison
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.page import screen
from dlemu.studies.compare.sides import Side, read_side, side_of_runs
from tests.report.folders import write_run, write_size, write_sweep
from tests.run.test_checkpoint_jobs import run
from tests.shown import details

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.report.figure_base import Figure
from dlemu.report.page import open_page, write_page, write_pictures
from dlemu.studies.figures import Point, charts
from tests.report.test_figures import check_drawn, column
from tests.report.test_page import read_page


def write_comparison(folder: Path, *compared: Path) -> Path:
    a, b = (side for one in compared for side in read_side(str(one)))
    save_answer(str(folder), COMPARE, compare(a, b))
    return folder


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
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


# runs of checkpoints


_DURATIONS = ("ended_ns", "released_ns", "moved_ns", "synced_ns", "started_ns")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> CheckpointRun:
    return run(tmp_path_factory.mktemp("quick"))


@pytest.fixture(scope="module")
def slow(quick: CheckpointRun, tmp_path_factory: pytest.TempPathFactory) -> CheckpointRun:
    """The same run, all of whose writing took twice as long."""
    rows = quick.rows.copy()
    writing = rows["phase"] != READ
    for name in _DURATIONS:
        longer = rows["began_ns"] + 2 * (rows[name] - rows["began_ns"])
        rows[name] = np.where(writing & (rows[name] > 0), longer, rows[name])
    rows["fsync_ns"] = np.where(writing, 2 * rows["fsync_ns"], rows["fsync_ns"])
    twice = replace(quick, folder=str(tmp_path_factory.mktemp("slow") / "result"), rows=rows)
    write_measured(twice)
    write_summary(twice)
    return twice


def side_of(run: CheckpointRun) -> Side:
    return side_of_runs(run.folder, {(): figures(run)}, {(): conditions(run.summary, run.facts)})


def test_a_run_that_took_twice_as_long_is_told_with_its_uncertainty(quick: CheckpointRun, slow: CheckpointRun) -> None:
    comparison = compare(side_of(slow), side_of(quick))
    metrics = comparison.runs[0].metrics
    assert metrics["write_slowest_seconds"].difference_percent == pytest.approx(100)
    assert metrics["write_slowest_gib_per_second"].difference_percent == pytest.approx(-50)
    assert metrics["read_slowest_seconds"].difference_percent == 0
    assert metrics["write_fsync_percent"].a.mean == pytest.approx(metrics["write_fsync_percent"].b.mean)
    assert metrics["write_slowest_seconds"].half_width_percent is not None, "three checkpoints are repetitions"
    assert "reading: no significant difference in time" in comparison.verdict
    known = figures(quick).metrics.keys()
    assert known <= {metric.name for metric in CATALOGUE}, "each has its words"
    assert [one for one in comparison.issues if "same device" not in one] == [], "nothing was set otherwise"


def test_what_was_set_otherwise_is_told(quick: CheckpointRun) -> None:
    saves = replace(quick.facts.workload.checkpoint, fsync=False)
    facts = replace(quick.facts, workload=replace(quick.facts.workload, checkpoint=saves))
    comparison = compare(side_of(quick), side_of(replace(quick, facts=facts)))
    assert "fsync: yes for A, no for B" in comparison.issues
    halves = (replace(quick, rows=quick.rows[quick.rows["phase"] == phase]) for phase in (1 - READ, READ))
    wrote, read = map(side_of, halves)
    assert compare(wrote, read).verdict.startswith("nothing that could be compared is known of both")


def test_the_command_keeps_json_and_page(quick: CheckpointRun, slow: CheckpointRun, tmp_path: Path) -> None:
    ended = CliRunner().invoke(command, [slow.folder, quick.folder, "--output", str(tmp_path / "both")])
    assert ended.exit_code == 0, ended.output
    assert "written, one checkpoint" in ended.output
    again = dlemu.load_result(tmp_path / "both")
    assert isinstance(again, Comparison)
    assert again == dlemu.compare(slow, quick)
    html = (tmp_path / "both" / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    for words in ("one checkpoint, side by side", again.verdict.split(";")[0].replace("+-", "±"), "limited by"):
        assert words in html
    assert len(write_pictures(str(tmp_path / "both"), "svg", str(tmp_path))) == 1
    printed = CliRunner().invoke(command, [slow.folder, quick.folder, "--json"])
    assert json.loads(printed.output)["runs"][0]["metrics"].keys() == again.runs[0].metrics.keys()


def test_checkpoints_and_training_are_not_mixed(quick: CheckpointRun, tmp_path: Path) -> None:
    trained = str(write_run(tmp_path / "trained", telemetry=False))
    for given in ([quick.folder, trained], [trained, quick.folder]):
        with pytest.raises(UserError, match=r"is a (run of checkpoints|training run), .*: wanted two of the same kind"):
            CliRunner().invoke(command, given, catch_exceptions=False)
    with pytest.raises(UserError, match="storages found: "):
        dlemu.compare(quick)
