"""`dlemu doctor`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dlemu.cli import doctor
from dlemu.doctor.check_base import Check
from tests.datasets import make_dataset


@pytest.mark.parametrize(("levels", "status"), [(["ok", "warn"], 0), (["ok", "fail"], 2)])
def test_the_exit_status_shows_whether_something_fails(
    levels: list[Any], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [Check(name="one", level=level, observed="this", wanted="that", advice="do so") for level in levels]
    monkeypatch.setattr("dlemu.doctor.examine", lambda _: iter(checks))
    result = CliRunner().invoke(doctor.command)
    assert result.exit_code == status
    assert result.stdout.count("wanted: that") == 2
    assert "to do: do so" in result.stdout


def test_all_checks_are_printed_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check(name="one", level="ok", observed="this"), Check(name="two", level="fail", observed="a", advice="b")]
    monkeypatch.setattr("dlemu.doctor.examine", lambda _: iter(checks))
    result = CliRunner().invoke(doctor.command, ["--json"])
    assert result.exit_code == 2
    assert [Check(**one) for one in json.loads(result.stdout)] == checks


@pytest.mark.slow
def test_the_doctor_looks_at_everything_and_raises_nothing(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    shape = ["dataset.num_files_train=24", "dataset.record_length_bytes=40000"]
    shape += ["dataset.record_length_bytes_stdev=15000", f"dataset.data_folder={tmp_path}"]
    result = CliRunner().invoke(doctor.command, shape)
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for name in ("configuration", "MPI", "cores", "O_DIRECT", "dataset", "ranks fit"):
        assert name in result.stdout
