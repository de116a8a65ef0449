"""`dlemu workload`: a file for a workload of one's own, and what a workload asks of the storage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from datagen.errors import UserError
from dlemu.cli.workload import command
from dlemu.config import load

ASKED = ("--batch-size", "8", "--step-seconds", "0.02", "--workers", "2", "--preprocess-seconds", "0.001")


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_a_new_file_of_own_data_loads_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for number in range(10):
        (tmp_path / "images" / "cat" / f"{number}.jpg").write_bytes(bytes(1000 * (number + 1)))
    path = str(tmp_path / "my.yaml")
    written = run("new", path, "--data-folder", str(tmp_path / "images"), *ASKED)
    assert written.exit_code == 0, written.output
    workload = load([f"workload={path}"])
    assert (workload.dataset.num_files_train, workload.reader.batch_size, workload.reader.read_threads) == (10, 8, 2)
    shown = re.sub(r"\s+", " ", run("show", path).output)
    for words in ("files 10", "5.5 kB", "p0, p10, p50", "400 /s samples", "2.2 MB/s", "0.4 cores preprocessing"):
        assert words in shown


def test_a_new_file_of_a_dataset_to_be_made(tmp_path: Path) -> None:
    path = str(tmp_path / "made.yaml")
    size = ("--format", "npz", "--files", "100", "--samples-per-file", "1", "--sample-bytes", "40000")
    assert run("new", path, "--data-folder", str(tmp_path / "data"), *ASKED, *size).exit_code == 0
    data = load([f"workload={path}"]).dataset
    assert (data.source, data.format, data.num_files_train) == ("generated", "npz", 100)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("new", "my.yml"), "does not end in .yaml"),
        (("new", "my.yaml", "--data-folder", "x"), "4 options missing: --batch-size: Samples per step"),
        (("new", "my.yaml", "--data-folder", "/nowhere", *ASKED), "/nowhere is not a folder"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_left(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*words)
    assert isinstance(ended.exception, UserError)
    assert said in str(ended.exception)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("mine")
    ended = run("new", str(tmp_path / "my.yaml"), "--data-folder", str(tmp_path), *ASKED)
    assert "exists" in str(ended.exception)
    assert (tmp_path / "my.yaml").read_text() == "mine"
