"""The check and the report generator of mlpstorage v2.0 say the same of the same trees, by the rules that both have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.tests.changes import config, override, runs, summary
from dlemu.contrib.mlperf.tests.golden import edit, make_tree

MLPSTORAGE = os.environ.get("DLEMU_MLPSTORAGE", "")
"""A checkout of https://github.com/mlcommons/storage at v2.0."""
CASES: list[tuple[str, Callable[[Path], object]]] = [
    ("CLOSED", lambda root: None),
    ("INVALID", summary("host_memory_GB", value=[400.0])),
    ("INVALID", override("++workload.train.epochs=5")),
    ("OPEN", override("++workload.reader.data_loader=dali")),
    ("CLOSED", override("++workload.reader.read_threads=16")),
    ("INVALID", lambda root: _not_unet3d(root)),
]

pytestmark = pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE names no checkout of mlcommons/storage v2.0")


def _not_unet3d(root: Path) -> None:
    """Direct reads are for unet3d alone."""
    config("reader", "odirect", value=True)(root)
    config("model", "name", value="resnet50")(root)
    for run in runs(root):
        edit(run / "summary.json", lambda content: content.update(model="resnet50"))


@pytest.mark.parametrize(("category", "change"), CASES)
def test_both_say_the_same(tmp_path: Path, category: str, change: Callable[[Path], object]) -> None:
    root = make_tree(tmp_path / "tree", "2.0")
    change(root)
    found = check_folder(str(root)).findings
    known = {one.finding.rule for one in found if one.official and one.finding.severity == "error"}
    if category == "OPEN":
        assert known == {"overrides.open"}
    else:
        assert (category == "CLOSED") == (not known)
    results = tmp_path / "results"
    shutil.copytree(root / "closed/acme/results/box", results)
    assert set(_categories(tmp_path, results)) == {category}


def _categories(home: Path, results: Path) -> list[str]:
    """The heading that the report has each run under."""
    ended = subprocess.run(
        [sys.executable, "-m", "mlpstorage.main", "reports", "reportgen", "--results-dir", str(results)],
        cwd=MLPSTORAGE,
        env=os.environ | {"HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told, heading = [], ""
    for line in ended.stdout.splitlines():
        if line.startswith("---"):
            heading = line.strip("- ").split()[0]
        elif line.strip().startswith("RunID"):
            told.append(heading)
    assert len(told) == 6
    return told
