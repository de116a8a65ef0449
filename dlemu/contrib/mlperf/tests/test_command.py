"""`dlemu mlperf` and `dlemu audit` as users call them: commands work when pasted; exit statuses are verdicts."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.mlperf.audit.audit_answer import audit_row
from dlemu.contrib.mlperf.audit.audited_run import audit_trees
from dlemu.contrib.mlperf.audit_command import command as audit_command
from dlemu.contrib.mlperf.command import command
from dlemu.contrib.mlperf.tests.changes import scale
from dlemu.contrib.mlperf.tests.foreign_runs import write_run
from dlemu.contrib.mlperf.tests.golden import edit
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
    two = datasize(*PAIR, "--hosts", "2", "--memory-gib", "512", "dataset.num_subfolders_train=2")
    assert f"at most {-(-dataset.num_files_train // 2):,} files in each" in two.output
    bucket = datasize(*PAIR, "storage.storage_type=s3", "storage.storage_root=b", "--hosts", "2", "--memory-gib", "512")
    assert (bucket.exit_code, "NOT ENOUGH" in bucket.output) == (0, False), bucket.output


def test_memory_is_measured_when_it_is_not_given() -> None:
    told = json.loads(datasize(*PAIR, "--json").output)
    assert told["memory_gib_per_host"] == host_memory().total_bytes / 2**30
    assert told["bound"]["files"] >= 500 * 7 * 8
    assert told["datagen"].startswith("dlemu datagen workload=unet3d")
    small = json.loads(datasize(*PAIR, "scale=laptop", "--json").output)
    assert small["nominal_bytes"] / small["files"] == pytest.approx(146600628 / 256, rel=0.01)
    refused = str(datasize(*PAIR, "--edition", "3.0").exception)
    assert "is not in the rules of v3.0: wanted one of v3.0: unet3d on b200" in refused


@pytest.mark.parametrize("key", ["dataset.num_files_train", "++workload.dataset.num_files_train"])
def test_settings_that_break_a_rule_are_told_with_what_is_wanted_and_by_the_exit_status(key: str) -> None:
    told = datasize(*PAIR, f"{key}=20000", "--memory-gib", "64")
    assert told.exit_code == 1
    assert "error dataset.size: 20,000 files" in told.output
    assert "wanted 28,000 files or more: 500 steps of each accelerator" in told.output
    (pasted,) = [line for line in told.output.splitlines() if line.startswith("make it: dlemu datagen")]
    assert pasted.count("num_files_train") == 1, "a setting given and corrected is printed once"
    assert datasize(*PAIR, f"{key}=28000", "--memory-gib", "64").exit_code == 0
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


# `dlemu audit`


DOCS = Path(__file__).parents[4] / "dlemu" / "contrib" / "mlperf" / "docs" / "audit.md"


def audit(*words: object) -> Result:
    return CliRunner().invoke(audit_command, [str(word) for word in words])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two sound runs, one without steps, and one whose summary.json is cut short."""
    for number in (1, 2):
        write_run(tmp_path / "unet3d" / f"run{number}", seed=number, ranks=2)
    write_run(tmp_path / "other" / "run1" / "node0", kept=0)
    return tmp_path


def test_an_error_in_one_run_ends_with_1_and_is_told(tree: Path) -> None:
    (tree / "unet3d" / "run2" / "summary.json").write_text("{")
    result = audit(tree)
    assert result.exit_code == 1
    assert "error file.broken" in result.output
    assert "summary.json: " in result.output
    assert result.output.splitlines()[-1].endswith("1 with errors")


def test_a_sentence_says_whether_the_printed_au_is_right(tree: Path) -> None:
    sentence = "printed AU: right in 2 runs, not certain in 1 run"
    assert sentence in audit(tree).output
    for factor in (0.9, 0):
        edit(tree / "unet3d" / "run2" / "summary.json", scale("metric/train_au_mean_percentage", factor))
        assert "printed AU: right in 1 run, wrong in 1 run, not certain in 1 run" in audit(tree).output


def test_a_wrong_folder_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wanted a folder"):
        audit_trees([str(tmp_path / "nothing")])
    with pytest.raises(UserError, match="no run in"):
        audit_trees([str(tmp_path)])


def test_files_and_json_have_a_row_a_run_and_the_documented_columns(tree: Path) -> None:
    (tree / "unet3d" / "run2" / "summary.json").write_text("{")
    result = audit(tree, "--csv", tree / "out" / "a.csv", "--json")
    with open(tree / "out" / "a.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = [audit_row(run) for run in audit_trees([str(tree)])]
    assert [line["path"] for line in lines] == [row.path for row in rows]
    assert list(lines[0]) == list(asdict(rows[0]))
    told = json.loads(result.output)
    assert [one["path"] for one in told] == [row.path for row in rows]
    assert {"severity", "rule", "seen", "wanted", "fix"} == set(told[2]["findings"][0])
    documented = DOCS.read_text()
    assert [name for name in (*asdict(rows[0]), *told[0]) if f"`{name}`" not in documented] == []


def test_auditing_loads_no_framework(tree: Path) -> None:
    program = (
        "import sys; from dlemu.contrib.mlperf.audit.audited_run import audit_trees; audit_trees(sys.argv[1:]);"
        "print(sorted({'torch', 'tensorflow', 'hydra', 'mpi4py', 'pyarrow'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", program, str(tree)], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
