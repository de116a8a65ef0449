"""Other programs' files are made of what a kind of job declares: no exporter knows a kind by its name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlemu.dlio.export import export_beside
from dlemu.jobs.training.result import make_run
from dlemu.results import kinds
from dlemu.results.kinds import Kind, kind_named
from dlemu.runner.events import Saved
from tests.runs import make_job, make_log


def exported_as(own: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Save a run of a kind of somebody's own, and return the folder of DLIO's files."""
    monkeypatch.setattr(kinds, "installed_kinds", lambda: (own,))
    job = make_job()
    run = make_run(job, make_log(job))
    export_beside(Saved(replace(run, folder=str(tmp_path), facts=replace(run.facts, kind=own.name))))
    return tmp_path / "dlio"


def test_a_kind_that_says_how_it_is_exported_gets_dlio_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported_as(replace(kind_named("training"), name="own"), tmp_path, monkeypatch)
    assert json.loads((folder / "summary.json").read_text())["metric"]["train_au_mean_percentage"] > 0
