"""`dlemu compare` and `predict` on results of DLIO and MLPerf Storage: numbers are those that the audit recomputes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.cli.compare import command
from dlemu.contrib.mlperf.audit.audited_run import audit_trees
from dlemu.contrib.mlperf.audit.foreign_side import foreign_side
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.contrib.mlperf.tests.changes import put
from dlemu.contrib.mlperf.tests.foreign_runs import C, play
from dlemu.contrib.mlperf.tests.foreign_runs import write_run as write_foreign_run
from dlemu.contrib.mlperf.tests.golden import edit
from dlemu.dlio.export import export_run
from dlemu.jobs.training.result import make_run
from tests.runs import dlio_place, make_job, make_log, present, write_run


def test_a_run_has_the_numbers_of_the_audit(tmp_path: Path) -> None:
    write_foreign_run(tmp_path, "v2", ranks=3, epochs=2)
    (run,) = audit_trees([str(tmp_path)])
    runs, _ = foreign_side(str(tmp_path))
    (figures,) = runs.values()
    assert figures.mean("au_percent") == pytest.approx(run.recomputed.formulas["dlio"].au_percent)
    assert figures.mean("au_whole_percent") == run.recomputed.au_whole_percent
    assert figures.mean("samples_per_second") == pytest.approx(run.recomputed.formulas["dlio_v1"].samples_per_second)
    assert (figures.workload, figures.accelerator, figures.ranks, figures.epochs) == ("unet3d", "h100", 3, 2)
    assert figures.metrics["total_seconds"].mean >= figures.metrics["training_seconds"].mean > 0


def test_dlio_and_dlemu_are_compared_where_their_datasets_are_alike(tmp_path: Path) -> None:
    """Whoever trained on fewer files saved no time."""
    job = make_job(folder=str(tmp_path / "own"), ranks=3)
    write_run(make_run(job, make_log(job)))
    write_foreign_run(tmp_path / "dlio", "v2", ranks=3)
    result = CliRunner().invoke(command, [str(tmp_path / "dlio"), str(tmp_path / "own"), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert any(issue.startswith("A: numbers are recomputed from DLIO's files") for issue in told["issues"])
    (pair,) = told["runs"]
    assert any(reason.endswith("and 144 for B") for reason in pair["not_comparable"]), pair["not_comparable"]


@pytest.mark.parametrize("edition", ["v1", "v2"])
def test_time_stamps_alone_give_rates_and_the_rules_au(tmp_path: Path, edition: str) -> None:
    write_foreign_run(tmp_path / "whole", edition, ranks=2)
    write_foreign_run(tmp_path / "bare", edition, ranks=2, kept=0)
    (whole,), (bare,) = (foreign_side(str(tmp_path / name))[0].values() for name in ("whole", "bare"))
    assert bare.mean("au_percent") is None
    for name in ("au_whole_percent", "samples_per_second"):
        assert bare.mean(name) == pytest.approx(whole.mean(name), rel=0.01)
    assert any("kept no steps" in warning for warning in foreign_side(str(tmp_path / "bare"))[1][()].warnings)


def test_a_run_of_dlemu_has_the_same_rate_by_its_dlio_files(tmp_path: Path) -> None:
    """What is compared has one meaning, whoever wrote the files."""
    job = make_job(folder=str(tmp_path))
    run = make_run(job, make_log(job))
    write_run(run)
    export_run(dlio_place(tmp_path / "dlio"), run)
    (figures,) = foreign_side(str(tmp_path / "dlio"))[0].values()
    metrics = run.summary.metrics
    assert figures.mean("samples_per_second") == pytest.approx(present(metrics.samples_per_second).mean, rel=0.02)
    assert figures.mean("au_percent") == pytest.approx(present(metrics.au_dlio_percent).mean, abs=0.01)


def test_runs_of_two_trees_are_compared_by_their_names(tmp_path: Path) -> None:
    for tree, seed in (("a", 1), ("b", 2)):
        for name in ("run1", "run2"):
            write_foreign_run(tmp_path / tree / name, "v2", ranks=2, seed=seed)
    folder = tmp_path / "out"
    words = [str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(folder), "--no-report"]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    pairs = json.loads((folder / "compare.json").read_text())["runs"]
    assert [pair["settings"] for pair in pairs] == [{"run": "run1"}, {"run": "run2"}]
    assert {"au_percent", "au_whole_percent", "samples_per_second", "total_seconds"} <= pairs[0]["metrics"].keys()


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text('{"num_accelerators": 4, "metric": {}}')
    write_foreign_run(tmp_path / "several" / "run1", "v2", ranks=2)
    write_foreign_run(tmp_path / "several" / "run2", "v2", ranks=2)
    config = tmp_path / "several" / "run2" / "dlio_config" / "config.yaml"
    config.write_text(config.read_text().replace("unet3d", "resnet50"))
    for name, message in (
        ("broken", "no run whose numbers"),
        ("several", "resnet50, unet3d"),
        ("none", "not a readable folder"),
    ):
        with pytest.raises(UserError, match=message):
            foreign_side(str(tmp_path / name))


# Of the times of epochs in DLIO's results a prediction is made.


def test_dlios_results_are_what_a_prediction_is_made_of(tmp_path: Path) -> None:
    """Of v1.0, without steps: the wait for an epoch's first batch follows from its AU."""
    run, epochs = tmp_path / "run", play(1, 3, 50, 0)
    summary = write_foreign_run(run, ranks=1, epochs=3, steps=50, kept=0)
    edit(run / "configs/config.yaml", put("workload/reader/read_threads", 8))
    answer = dlemu.predict(
        ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=350", f"output.folder={tmp_path / 'p'}"],
        from_folder=run,
    )
    known = present(foreign_run(str(run)))
    assert known.epoch_seconds == pytest.approx([rank.end - rank.start for (rank,) in epochs], abs=1e-5)
    assert known.first_seconds == pytest.approx([rank.proc[0] - C for (rank,) in epochs], abs=1e-4)
    rate = summary["metric"]["train_throughput_mean_samples_per_second"]
    assert answer.shown.samples_per_second == pytest.approx(rate, rel=0.03)
    assert "3 epochs" in answer.source
    edit(run / "summary.json", put("metric/train_au_percentage/1", 0.0))
    without = present(foreign_run(str(run)))
    assert without.first_seconds == ()


def test_a_folder_of_several_runs_or_of_none_is_said(tmp_path: Path) -> None:
    assert foreign_run(str(tmp_path)) is None
    for name in ("a", "b"):
        write_foreign_run(tmp_path / name, ranks=1)
    with pytest.raises(UserError, match="holds 2 runs"):
        foreign_run(str(tmp_path))
    (tmp_path / "a" / "configs" / "config.yaml").unlink()
    with pytest.raises(UserError, match="lacks"):
        foreign_run(str(tmp_path / "a"))
