"""`dlemu compare` on checkpoints of DLIO and MLPerf Storage: numbers are those of the ranks' files."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner

from datagen.errors import UserError
from dlemu.cli.compare import command
from dlemu.contrib.mlperf.audit.foreign_side import foreign_checkpoints
from dlemu.contrib.mlperf.tests.checkpoint_leaves import leaves, make_result
from dlemu.contrib.mlperf.tests.foreign_runs import write_run as write_training
from dlemu.dlio.config import DlioFolders
from dlemu.dlio.results import write_results
from dlemu.report.table import Table
from dlemu.results.figures import Value
from dlemu.studies.answers import read_comparison
from dlemu.studies.compare.page import sections
from dlemu.studies.compare.sides import Side, side_of_runs
from tests.dlio import published_checkpoints as published
from tests.dlio.test_dlio_checkpoints import published_run

SLOWEST = [max(ranks) for ranks in zip(*published.SAVED.values(), strict=True)]


def side_of(folder: Path) -> Side:
    side = foreign_checkpoints(str(folder))
    assert side is not None
    return side_of_runs(str(folder), *side)


def metrics_of(folder: Path) -> dict[str, Value]:
    (figures,) = side_of(folder).runs.values()
    return figures.metrics


def slower(folder: Path, times: float) -> Path:
    """Let every checkpoint take so many times as long, and leave the summaries as they are."""
    for path in folder.rglob("*_per_epoch_stats.json"):
        stats: dict[str, Any] = json.loads(path.read_text())
        for part in stats["1"].values():
            part["duration"] *= times
        path.write_text(json.dumps(stats))
    return folder


def test_a_published_result_has_its_published_figures(tmp_path: Path) -> None:
    side = side_of(make_result(tmp_path))
    about = side.about()
    assert about is not None
    assert (side.title, side.workload) == ("llama3_8b: checkpoints of 8 ranks", "llama3_8b")
    assert about.started_at.startswith("2026-07-13T10:48:45")
    metrics = metrics_of(tmp_path)
    means = {name: value.mean for name, value in metrics.items()}
    assert means.pop("checkpoint_gib") == published.SIZE_GIB
    assert means["write_rank0_gib_per_second"] == pytest.approx(
        published.WRITE_METRIC["save_checkpoint_io_mean_GB_per_second"], rel=1e-12
    )
    assert means["read_rank0_gib_per_second"] == pytest.approx(
        published.READ_METRIC["load_checkpoint_io_mean_GB_per_second"], rel=1e-12
    )
    assert means["write_slowest_seconds"] == pytest.approx(fmean(SLOWEST))
    assert means["write_slowest_gib_per_second"] == pytest.approx(fmean(published.SIZE_GIB / each for each in SLOWEST))
    assert metrics["write_slowest_seconds"].each == pytest.approx(SLOWEST)
    assert metrics["write_slowest_seconds"].half_width is not None, "ten checkpoints are repetitions"
    assert not any("contradict" in warning for warning in side.warnings)


def test_one_call_and_dlemus_own_files_in_dlios_way_say_the_same(tmp_path: Path) -> None:
    made = make_result(tmp_path / "theirs")
    assert not [name for name in metrics_of(leaves(made)[0]) if name.startswith("read")]
    ours = tmp_path / "ours"
    ours.mkdir()
    folders = DlioFolders(folder=str(ours), config_folder=str(ours / "dlio_config"))
    write_results(folders, published_run("write", "read"))
    theirs, both = metrics_of(made), metrics_of(ours)
    assert both.keys() == theirs.keys()
    for name, value in both.items():
        assert value.mean == pytest.approx(theirs[name].mean, rel=1e-9), name


def test_two_results_are_compared_with_json_and_page(tmp_path: Path) -> None:
    quick, slow = make_result(tmp_path / "quick"), slower(make_result(tmp_path / "slow"), 2.0)
    both = tmp_path / "both"
    ended = CliRunner().invoke(command, [str(slow), str(quick), "--output", str(both), "--no-report"])
    assert ended.exit_code == 0, ended.output
    answer = json.loads((both / "compare.json").read_text())
    metrics = answer["runs"][0]["metrics"]
    assert metrics["write_slowest_seconds"]["difference_percent"] == pytest.approx(100)
    assert metrics["checkpoint_gib"]["difference_percent"] == 0
    assert answer["verdict"].startswith("writing: A takes 100.0 % more time than B (+- ")
    assert "limited" not in answer["verdict"], "nobody knows by what"
    assert [side["about"]["how"] for side in answer["sides"]] == [{}, {}]
    assert any(issue.startswith("A: its files contradict each other") for issue in answer["issues"])
    assert not any(issue.startswith("B: its files contradict") for issue in answer["issues"])
    where = list(sections(read_comparison(str(both)), str(both)))[-1]
    assert isinstance(where, Table)
    assert ["measured", "2026-07-13T10:48:45.945468", "2026-07-13T10:48:45.945468"] in [list(row) for row in where.rows]


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path: Path) -> None:
    made = make_result(tmp_path / "one")
    write_training(tmp_path / "training", "v2", ranks=2)
    assert foreign_checkpoints(str(tmp_path / "training")) is None
    with pytest.raises(UserError, match=r"checkpoints, .*training a training run: wanted two of the same kind"):
        CliRunner().invoke(command, [str(made), str(tmp_path / "training")], catch_exceptions=False)
    (leaves(made)[0] / "3_per_epoch_stats.json").unlink()
    with pytest.raises(UserError, match="times of 7 of 8 ranks"):
        foreign_checkpoints(str(made))
    make_result(tmp_path / "several" / "a")
    make_result(tmp_path / "several" / "b")
    with pytest.raises(UserError, match="holds 4 runs, of more than one result"):
        foreign_checkpoints(str(tmp_path / "several"))
