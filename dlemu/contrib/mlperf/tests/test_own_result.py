"""`dlemu audit` of dlemu's own folders: every published number is held against the steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlemu.config.schema import Metric
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_trees
from dlemu.contrib.mlperf.rules.known import Finding
from dlemu.contrib.mlperf.tests import golden
from dlemu.dlio.export import export_run
from dlemu.jobs.training.result import make_run
from tests.results.test_live import killed
from tests.runs import cut, dlio_place, make_job, make_log, with_blocks, with_telemetry, write_run


def leave_run(folder: Path, *, failure: str | None = None, drop_in: bool = False, name: str = "dlemu") -> None:
    """What `dlemu train` leaves, DLIO's files in dlio/; or right above dlemu's for a drop-in run."""
    job = make_job(folder=str(folder / name if drop_in else folder), metric=Metric(au=0.999), **with_blocks(6))
    run = make_run(job, with_telemetry(make_log(job)), failure)
    if failure is None:
        export_run(dlio_place(folder if drop_in else folder / "dlio"), run)
    write_run(run)


def audited(folder: Path) -> AuditedRun:
    """The one run below a folder."""
    (run,) = audit_trees([str(folder)])
    return run


def errors(run: AuditedRun) -> list[Finding]:
    return [finding for finding in run.findings if finding.severity == "error"]


def edit(folder: Path, change: Callable[[Any], None]) -> None:
    golden.edit(folder / "summary.json", change)


def set_key(key: str, value: object) -> Callable[[Any], None]:
    """A change that puts a value at `metrics.au_percent.mean` or `each_sample_once.0`."""

    def change(content: Any) -> None:
        *above, last = (int(part) if part.isdigit() else part for part in key.split("."))
        for part in above:
            content = content[part]
        content[last] = value

    return change


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
        ("metrics.au_percent.mean", 99.9, "99.9"),
        ("metrics.au_percent.per_epoch.1", 99.9, "99.9"),
        ("metrics.au_dlio_percent.mean", 99.9, "99.9"),
        ("metrics.samples_per_second.mean", 1e6, "1000000.0"),
        ("metrics.device_mb_per_second.mean", 7000.5, "7000.5"),
        ("metrics.app_bytes", 5, "5"),
        ("outcome", "pass", "pass"),
        ("verdict", "PASS: AU 99.95 % is at least 99.9 %", "PASS: AU 99.95 % is at least 99.9 %"),
        ("verdict", "FAIL: AU 99.80 % is below 99.9 %", "FAIL: AU 99.80 % is below 99.9 %"),
        ("limited_by.what", "nothing", "nothing"),
        ("limited_by", None, "None"),
        ("loss_percent.reading", 0.25, "0.25"),
        ("each_sample_once.0", False, "False"),
        ("checkpoints", [], "0"),
        ("ranks", 16, "16"),
    ],
)
def test_an_edited_number_or_verdict_is_named_with_what_the_steps_give(
    tmp_path: Path, key: str, value: object, printed: str
) -> None:
    leave_run(tmp_path)
    edit(tmp_path, set_key(key, value))
    (finding,) = errors(audited(tmp_path))
    assert finding.rule == "summary.differs"
    shown = key.replace(".0", "[0]").replace(".1", "[1]")
    shown = f"entries of {shown}" if value == [] else shown
    assert finding.seen.startswith(f"summary.json: {shown} is {printed}; recomputed ")


def test_an_integer_that_no_float_can_have_is_a_difference(tmp_path: Path) -> None:
    leave_run(tmp_path)
    edit(tmp_path, set_key("metrics.samples_per_second.mean", 10**400))
    assert {finding.rule for finding in errors(audited(tmp_path))} == {"summary.differs"}


def test_sentences_are_not_compared(tmp_path: Path) -> None:
    leave_run(tmp_path)
    edit(tmp_path, lambda content: content["issues"].append("all is well"))
    edit(tmp_path, lambda content: content["limited_by"].update(evidence=["in other words"]))
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
    edit(tmp_path, set_key("metrics.au_percent.mean", 99.9))
    run = audited(tmp_path)
    assert (run.path, [finding.rule for finding in errors(run)]) == (str(tmp_path), ["summary.differs"])


def test_a_run_that_failed_is_said_to_have_failed_and_compared_as_far_as_it_came(tmp_path: Path) -> None:
    leave_run(tmp_path, failure="rank 1 died")
    (finding,) = errors(audited(tmp_path))
    assert finding.rule == "no.training"
    assert "rank 1 died" in finding.seen
    edit(tmp_path, set_key("complete", True))
    assert {finding.rule for finding in errors(audited(tmp_path))} == {"no.training", "summary.differs"}


def test_of_several_runs_of_the_drop_in_the_newest_is_the_one_above_it(tmp_path: Path) -> None:
    for name in ("dlemu", "dlemu-2", "dlemu-10"):
        leave_run(tmp_path, drop_in=True, name=name)
    edit(tmp_path / "dlemu-10", set_key("outcome", "pass"))
    runs = {run.path: len(errors(run)) for run in audit_trees([str(tmp_path)])}
    assert runs == {str(tmp_path): 1, str(tmp_path / "dlemu"): 0, str(tmp_path / "dlemu-2"): 0}


def test_a_run_that_was_killed_is_audited_from_what_its_ranks_left(tmp_path: Path) -> None:
    killed(tmp_path)
    assert [finding.rule for finding in audited(tmp_path).findings] == ["no.training"]
