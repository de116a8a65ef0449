"""The page about one's own loader shows one that trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from datagen.registry import find
from tests.datasets import make_dataset

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


@pytest.mark.slow
def test_the_loader_of_the_page_trains_by_its_dotted_name(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "loader.py").write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0])
    dataset = make_dataset(tmp_path / "data")
    settings = [
        f"dataset.data_folder={dataset.data_folder}",
        f"dataset.num_files_train={dataset.num_files_train}",
        f"dataset.record_length_bytes={dataset.record_length_bytes}",
        f"dataset.record_length_bytes_stdev={dataset.record_length_bytes_stdev}",
        "train.computation_time=0.005",
        "train.synchronous=true",
        "metric.ceiling_seconds=0",
        f"output.folder={tmp_path / 'run'}",
        "reader.data_loader=mine.loader",
    ]
    path = os.pathsep.join([str(tmp_path), str(PAGE.parent.parent)])
    trained = subprocess.run(
        [sys.executable, "-m", "dlemu", "train", *settings],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert trained.returncode in (0, 1), trained.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["complete"] is True
    assert [epoch["each_sample_once"] for epoch in summary["audit"]] == [True, True]


def test_the_page_names_what_is_there() -> None:
    for package, attribute in (("dlemu.loaders", "Loader"), ("datagen.formats", "Format")):
        assert attribute in PAGE.read_text()
        assert find(package, "threads" if package == "dlemu.loaders" else "npz", attribute).__name__ == attribute
