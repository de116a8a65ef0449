"""Two runs of checkpoints side by side: one that took twice as long says so, in numbers, on the page, in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.checkpoints.io_rows import READ
from dlemu.cli.compare import command
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.parts import conditions, figures
from dlemu.jobs.checkpoint.summary import CATALOGUE
from dlemu.results.measured import write_measured, write_summary
from dlemu.studies.answers import Comparison
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.sides import Side, side_of_runs
from tests.report.folders import write_run
from tests.run.test_checkpoint_jobs import run

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")

from dlemu.report.page import write_pictures

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
    other = replace(quick, facts=facts)
    comparison = compare(side_of(quick), side_of(other))
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
