"""`dlemu audit` as a user calls it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from datagen.errors import UserError
from dlemu.contrib.mlperf.audit.audit_answer import audit_row
from dlemu.contrib.mlperf.audit.audited_run import audit_trees
from dlemu.contrib.mlperf.audit_command import command
from dlemu.contrib.mlperf.tests.changes import scale
from dlemu.contrib.mlperf.tests.foreign_runs import write_run
from dlemu.contrib.mlperf.tests.golden import edit

DOCS = Path(__file__).parents[4] / "dlemu" / "contrib" / "mlperf" / "docs" / "audit.md"


def audit(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


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
    words = [sys.executable, "-m", "dlemu", "audit", str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)


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
