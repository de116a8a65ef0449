"""Results of dlemu and of DLIO are audited, compared and predicted from: every number is held against the steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.cli.compare import command
from dlemu.config.schema import Metric
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_trees
from dlemu.contrib.mlperf.audit.foreign_side import foreign_side
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.contrib.mlperf.rules.known import Finding
from dlemu.contrib.mlperf.tests.changes import Edit, put
from dlemu.contrib.mlperf.tests.foreign_runs import C, play
from dlemu.contrib.mlperf.tests.foreign_runs import write_run as write_foreign_run
from dlemu.contrib.mlperf.tests.golden import edit
from dlemu.dlio.export import export_run
from tests.results.test_live import killed
from tests.runs import cut, dlio_place, make_job, make_log, make_run, present, with_blocks, with_telemetry, write_run


def leave_run(folder: Path, *, failure: str | None = None, drop_in: bool = False, name: str = "dlemu") -> None:
    """What `dlemu train` leaves, DLIO's files in dlio/; or right above dlemu's for a drop-in run."""
    job = make_job(folder=str(folder / name if drop_in else folder), metric=Metric(au=0.999), **with_blocks(6))
    run = make_run(job, with_telemetry(make_log(job)), failure)
    if failure is None:
        export_run(dlio_place(folder if drop_in else folder / "dlio"), run)
    write_run(run)


def audited(folder: Path) -> AuditedRun:
    (run,) = audit_trees([str(folder)])
    return run


def errors(run: AuditedRun) -> list[Finding]:
    return [finding for finding in run.findings if finding.severity == "error"]


def edit_summary(folder: Path, change: Edit) -> None:
    edit(folder / "summary.json", change)


@pytest.mark.parametrize("drop_in", [False, True])
def test_a_run_as_it_was_left_has_no_error_and_is_one_row(tmp_path: Path, drop_in: bool) -> None:
    leave_run(tmp_path, drop_in=drop_in)
    run = audited(tmp_path)
    assert run.path == str(tmp_path if drop_in else tmp_path / "dlio")
    assert errors(run) == []
    assert run.recomputed.basis == "steps"


@pytest.mark.parametrize("steps", [5, 14, 24])
def test_a_trial_that_ended_by_design_has_no_warning_and_one_that_lacks_steps_has(tmp_path: Path, steps: int) -> None:
    job = make_job(folder=str(tmp_path), epochs=2, steps=12)
    trial = cut(job, steps)
    run = make_run(trial, with_telemetry(make_log(trial)), None)
    export_run(dlio_place(tmp_path / "dlio"), run)
    write_run(run)
    assert not {"steps.count", "epochs.count"} & {finding.rule for finding in audited(tmp_path).findings}
    config = tmp_path / "dlio" / "dlio_config" / "config.yaml"
    stated = f"total_training_steps: {steps}"
    assert stated in config.read_text()
    config.write_text(config.read_text().replace(stated, f"total_training_steps: {steps - 1}"))
    assert "steps.count" in {finding.rule for finding in audited(tmp_path).findings}


@pytest.mark.parametrize(
    ("key", "value", "printed"),
    [
        ("metrics/au_percent/mean", 99.9, "99.9"),
        ("metrics/au_percent/per_epoch/1", 99.9, "99.9"),
        ("metrics/au_dlio_percent/mean", 99.9, "99.9"),
        ("metrics/samples_per_second/mean", 1e6, "1000000.0"),
        ("metrics/device_mb_per_second/mean", 7000.5, "7000.5"),
        ("metrics/app_bytes", 5, "5"),
        ("outcome", "pass", "pass"),
        ("verdict", "PASS: AU 99.95 % is at least 99.9 %", "PASS: AU 99.95 % is at least 99.9 %"),
        ("verdict", "FAIL: AU 99.80 % is below 99.9 %", "FAIL: AU 99.80 % is below 99.9 %"),
        ("limited_by/what", "nothing", "nothing"),
        ("limited_by", None, "None"),
        ("loss_percent/reading", 0.25, "0.25"),
        ("each_sample_once/0", False, "False"),
        ("checkpoints", [], "0"),
        ("ranks", 16, "16"),
    ],
)
def test_an_edited_number_or_verdict_is_named_with_what_the_steps_give(
    tmp_path: Path, key: str, value: object, printed: str
) -> None:
    leave_run(tmp_path)
    edit_summary(tmp_path, put(key, value))
    (finding,) = errors(audited(tmp_path))
    assert finding.rule == "summary.differs"
    shown = key.replace("/0", "[0]").replace("/1", "[1]").replace("/", ".")
    shown = f"entries of {shown}" if value == [] else shown
    assert finding.seen.startswith(f"summary.json: {shown} is {printed}; recomputed ")


def test_an_integer_that_no_float_can_have_is_a_difference(tmp_path: Path) -> None:
    leave_run(tmp_path)
    edit_summary(tmp_path, put("metrics/samples_per_second/mean", 10**400))
    assert {finding.rule for finding in errors(audited(tmp_path))} == {"summary.differs"}


def test_sentences_are_not_compared(tmp_path: Path) -> None:
    leave_run(tmp_path)
    edit_summary(tmp_path, lambda content: content["issues"].append("all is well"))
    edit_summary(tmp_path, lambda content: content["limited_by"].update(evidence=["in other words"]))
    assert [finding.rule for finding in audited(tmp_path).findings if finding.severity != "info"] == []


def test_an_edited_column_of_steps_is_found(tmp_path: Path) -> None:
    leave_run(tmp_path)
    path = tmp_path / "steps.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("wait_ns")
    less = pa.array([value // 2 for value in table["wait_ns"].to_pylist()], pa.int64())
    pq.write_table(table.set_column(place, table.field(place), less), path)
    found = errors(audited(tmp_path))
    assert {finding.rule for finding in found} == {"summary.differs"}
    assert any("metrics.au_percent.mean" in finding.seen for finding in found)


@pytest.mark.parametrize("name", ["summary.json", "steps.parquet", "telemetry.parquet", "facts.json"])
def test_a_truncated_file_or_one_without_its_steps_is_an_error(tmp_path: Path, name: str) -> None:
    leave_run(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    broken = {"file.broken"} if name == "summary.json" else {"result.broken"}
    assert broken <= {finding.rule for finding in errors(audited(tmp_path))}
    if name == "steps.parquet":
        path.unlink()
        (finding,) = errors(audited(tmp_path))
        assert (finding.rule, "steps.parquet" in finding.seen) == ("result.broken", True)


def test_without_dlios_files_the_run_is_audited_where_it_is(tmp_path: Path) -> None:
    leave_run(tmp_path)
    shutil.rmtree(tmp_path / "dlio")
    edit_summary(tmp_path, put("metrics/au_percent/mean", 99.9))
    run = audited(tmp_path)
    assert (run.path, [finding.rule for finding in errors(run)]) == (str(tmp_path), ["summary.differs"])


def test_a_run_that_failed_is_said_to_have_failed_and_compared_as_far_as_it_came(tmp_path: Path) -> None:
    leave_run(tmp_path, failure="rank 1 died")
    (finding,) = errors(audited(tmp_path))
    assert finding.rule == "no.training"
    assert "rank 1 died" in finding.seen
    edit_summary(tmp_path, put("complete", True))
    assert {finding.rule for finding in errors(audited(tmp_path))} == {"no.training", "summary.differs"}


def test_of_several_runs_of_the_drop_in_the_newest_is_the_one_above_it(tmp_path: Path) -> None:
    for name in ("dlemu", "dlemu-2", "dlemu-10"):
        leave_run(tmp_path, drop_in=True, name=name)
    edit_summary(tmp_path / "dlemu-10", put("outcome", "pass"))
    runs = {run.path: len(errors(run)) for run in audit_trees([str(tmp_path)])}
    assert runs == {str(tmp_path): 1, str(tmp_path / "dlemu"): 0, str(tmp_path / "dlemu-2"): 0}


def test_a_run_that_was_killed_is_audited_from_what_its_ranks_left(tmp_path: Path) -> None:
    killed(tmp_path)
    assert [finding.rule for finding in audited(tmp_path).findings] == ["no.training"]


# `dlemu compare` and `predict` on results of DLIO and MLPerf Storage: numbers are those that the audit recomputes.


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
    changes = {"reader/read_threads": 8, "dataset/record_length": 1e6, "dataset/record_length_stdev": 0}
    for key, value in changes.items():
        edit(run / "configs/config.yaml", put(f"workload/{key}", value))
    answer = dlemu.predict(
        ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=350", f"output.folder={tmp_path / 'p'}"],
        from_folder=run,
    )
    known = present(foreign_run(str(run)))
    assert (known.workload.dataset.record_length_bytes, known.workload.dataset.record_length_bytes_stdev) == (1e6, 0)
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
