"""`dlemu mlperf`: datasize prints commands that work when pasted; exit statuses are verdicts."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

from click.testing import CliRunner, Result

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.mlperf.command import command
from dlemu.contrib.mlperf.tests.foreign_runs import write_run
from dlemu.machine.cgroup_limits import host_memory

PAIR = ("workload=unet3d", "accelerator=h100", "ranks=8", "dataset.data_folder=/nowhere/with a space/unet3d")


def datasize(*words: str) -> Result:
    return CliRunner().invoke(command, ["datasize", *words])


def test_a_folder_without_any_run_is_no_invalid_submission(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    found = CliRunner().invoke(command, ["check", str(tmp_path)])
    assert isinstance(found.exception, UserError)
    assert found.exception.exit_status == 2
    assert str(found.exception).startswith(f"no results found in {tmp_path}: looked in it and below for runs")
    assert "INVALID" not in found.output


def test_the_datagen_command_makes_the_dataset_that_is_advised() -> None:
    told = datasize(*PAIR, "--hosts", "2", "--memory-gib", "512")
    assert told.exit_code == 0, told.output
    (pasted,) = [line for line in told.output.splitlines() if line.startswith("make it: dlemu datagen")]
    dataset = load(shlex.split(pasted)[4:]).dataset
    least = -(-5 * 2 * 512 * 2**30 // 146600628)
    assert f"{least:,} files" in told.output
    assert least < dataset.num_files_train <= 1.01 * least + 1
    assert dataset.num_subfolders_train == 4
    assert dataset.data_folder == "/nowhere/with a space/unet3d"
    assert "NOT ENOUGH" in told.output


def test_memory_is_measured_when_it_is_not_given() -> None:
    told = json.loads(datasize(*PAIR, "--json").output)
    assert told["memory_gib_per_host"] == host_memory().total_bytes / 2**30
    assert told["bound"]["files"] >= 500 * 7 * 8
    assert told["datagen"].startswith("dlemu datagen workload=unet3d")


def test_too_few_files_asked_for_are_told_with_what_is_wanted() -> None:
    told = datasize(*PAIR, "dataset.num_files_train=20000", "--memory-gib", "64")
    assert told.exit_code == 1
    assert "error dataset.size: 20,000 files" in told.output
    assert "wanted 28,000 files or more: 500 steps of each accelerator" in told.output
    (pasted,) = [line for line in told.output.splitlines() if line.startswith("make it: dlemu datagen")]
    assert pasted.count("num_files_train") == 1, "a setting given and corrected is printed once"
    assert datasize(*PAIR, "dataset.num_files_train=28000", "--memory-gib", "64").exit_code == 0


def test_settings_that_break_a_rule_are_told_by_the_exit_status() -> None:
    told = datasize(*PAIR, "train.epochs=1")
    assert told.exit_code == 1
    assert "error settings.changed: train.epochs=1; wanted 5" in told.output


def test_check_prints_findings_writes_them_and_says_by_its_status_whether_one_is_an_error(tmp_path: Path) -> None:
    run, table = tmp_path / "run", tmp_path / "findings.csv"
    write_run(run, "v2", ranks=2)
    told = CliRunner().invoke(command, ["check", str(run), "--csv", str(table)])
    assert told.exit_code == 1
    assert "error dataset.size [check_num_files_train]" in told.output
    assert told.output.rstrip().splitlines()[-1].startswith("INVALID: ")
    errors = [line for line in csv.DictReader(table.read_text().splitlines()) if line["severity"] == "error"]
    assert {"dataset.size", "settings.changed"} <= {line["rule"] for line in errors}
    plain = json.loads(CliRunner().invoke(command, ["check", str(run), "--json"]).output)
    assert (plain["valid"], plain["errors"]) == (False, len(errors))
