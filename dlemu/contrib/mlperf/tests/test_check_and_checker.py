"""The submission checker of mlpstorage v3.0 accepts what the check calls valid, and refuses what it refuses.

Run with 3.0.23; 3.0.27 is the newest that is known. Where it contradicts the edition's final rules,
`AGAINST_THE_RULES` says why; nothing else may be reported of an honest tree.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.tests.changes import Edit, edits, put
from dlemu.contrib.mlperf.tests.forging.forge import make_base
from dlemu.contrib.mlperf.tests.golden import edit
from dlemu.contrib.mlperf.tests.test_rehearsal import make_plan, rehearsal

MLPSTORAGE = os.environ.get("DLEMU_MLPSTORAGE_V3", "")
"""A checkout of https://github.com/mlcommons/storage at v3.0."""
AGAINST_THE_RULES = {
    "2.1.2": "the rules came to have the code's images beside closed/ and open/",
    "2.1.5": "the same: no code/ below the organisation",
    "2.1.6": "the same",
    "2.1.12": "the rules came to want datasize/",
    "2.1.14": "a datagen writes no results, and the rules came to want none",
}
LAPTOP = {"2.1.7", "2.1.8", "2.1.18", "3.1.2", "3.6.2", "4.7.3", "4.7.4"}
"""Of a rehearsal at laptop size: a description still to be filled in, no pdf, short runs, few files, other settings."""

pytestmark = [
    pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE_V3 names no checkout of mlcommons/storage v3.0"),
    pytest.mark.skipif(importlib.util.find_spec("pydantic") is None, reason="the checker wants pydantic"),
]


def _refused(root: Path) -> set[str]:
    """The rules that the checker reports as broken, by their numbers."""
    _as_it_reads(root)
    ended = subprocess.run(
        [sys.executable, "-m", "mlpstorage_py.submission_checker.main", "--input", str(root), "--version", "v3.0"],
        cwd=MLPSTORAGE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = ended.stdout + ended.stderr
    assert "SUMMARY: submission" in told, told
    return set(re.findall(r"^\[ERROR\] \[([\d.]+) ", told, re.MULTILINE))


def _as_it_reads(root: Path) -> None:
    """Write what this version reads and no version of the tool writes.

    That is metadata under names that the tool had given up (https://github.com/mlcommons/storage/issues/598, mended
    after 3.0.26), and df's output in the log, for which the tool came to write fs_separation.json.
    """
    for path in root.rglob("*_metadata.json"):
        edit(
            path, lambda told: told.update(combined_params=told["parameters"], params_dict=told["override_parameters"])
        )
        args = json.loads(path.read_text())["args"]
        data, results = (args.get(key, "") for key in ("data_dir", "results_dir"))
        rows = [f"/dev/sd{index} 9 1 8 1% {os.path.realpath(place)}" for index, place in enumerate((data, results))]
        for log in path.parent.glob("*_run.stdout.log"):
            log.write_text(
                "\n".join(["Filesystem 1K-blocks Used Available Use% Mounted on", *rows, "", log.read_text()])
            )


@pytest.mark.parametrize("base", ["3.0", "checkpoints", "both"])
def test_it_accepts_what_the_check_calls_valid(tmp_path: Path, base: str) -> None:
    root = make_base(base, tmp_path / "tree")
    assert not [one for one in check_folder(str(root)).findings if one.severity == "error"]
    assert _refused(root) <= AGAINST_THE_RULES.keys()


def test_it_accepts_a_rehearsals_tree_but_for_its_size(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    rehearsal(plan)
    refused = _refused(Path(plan.tree))
    assert "3.1.2" in refused  # it read the settings
    assert refused <= AGAINST_THE_RULES.keys() | LAPTOP


@pytest.mark.parametrize(
    ("official", "change"),
    [("3.1.2", put("parameters/dataset/num_files_train", 100)), ("4.3.2", put("parameters/checkpoint/fsync", False))],
)
def test_both_refuse(tmp_path: Path, official: str, change: Edit) -> None:
    root = make_base("both", tmp_path / "tree")
    edits(root.rglob(f"{'run' if official == '3.1.2' else 'checkpointing'}/**/*_metadata.json"), change)
    assert [one for one in check_folder(str(root)).findings if one.severity == "error"]
    assert official in _refused(root)
