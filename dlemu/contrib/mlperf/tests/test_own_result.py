"""`dlemu audit` of dlemu's own runs: it reads the files that they wrote in DLIO's format."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.config.schema import Metric
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_trees
from dlemu.contrib.mlperf.rules.known import Finding
from dlemu.dlio.export import export_run
from dlemu.extend import UserError
from dlemu.jobs.training.result import make_run
from tests.runs import cut, dlio_place, make_job, make_log, with_blocks, with_telemetry, write_run


def leave_run(folder: Path, *, drop_in: bool = False) -> None:
    """What `dlemu train` leaves, DLIO's files in dlio/; or right above dlemu's for a drop-in run."""
    job = make_job(folder=str(folder / "dlemu" if drop_in else folder), metric=Metric(au=0.999), **with_blocks(6))
    run = make_run(job, with_telemetry(make_log(job)))
    export_run(dlio_place(folder if drop_in else folder / "dlio"), run)
    write_run(run)


def audited(folder: Path) -> AuditedRun:
    """The one run below a folder."""
    (run,) = audit_trees([str(folder)])
    return run


def errors(run: AuditedRun) -> list[Finding]:
    return [finding for finding in run.findings if finding.severity == "error"]


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


def test_a_run_without_dlios_files_is_shown_by_the_report_alone(tmp_path: Path) -> None:
    leave_run(tmp_path, drop_in=True)
    with pytest.raises(UserError, match=r"no run in .*dlemu report"):
        audit_trees([str(tmp_path / "dlemu")])
