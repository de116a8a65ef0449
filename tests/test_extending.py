"""The page about modules of one's own shows a loader and a format that train."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from datagen.registry import find

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
LOADER, READING_LOADER, FORMAT = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
READER = """
from datagen.errors import UserError
from mine.raw import Format as Raw

class Format(Raw):
    def file_bytes(self, spec, shapes):
        return None

    def write(self, job, writer, buffer):
        raise UserError("mine.dat only reads")
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A package of the user's own."""
    package = tmp_path / "mine"
    package.mkdir()
    for name, text in (("loader", LOADER), ("reading", READING_LOADER), ("raw", FORMAT), ("dat", READER)):
        (package / f"{name}.py").write_text(text)
    return tmp_path


def dlemu(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    settings = [
        f"dataset.data_folder={where / 'data'}",
        "dataset.num_files_train=12",
        "dataset.num_samples_per_file=2",
        "dataset.record_length_bytes=40000",
        "reader.batch_size=4",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(where), str(PAGE.parent.parent)])}
    command = [sys.executable, "-m", "dlemu", *words, *settings]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def trained(where: Path, *settings: str) -> None:
    """Train, and see that each sample was read once."""
    folder = where / "run"
    fixed = ("train.epochs=2", "train.computation_time=0.005", "metric.ceiling_seconds=0", f"output.folder={folder}")
    ended = dlemu(where, "train", *fixed, *settings)
    assert ended.returncode in (0, 1), ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] is True
    assert [epoch["each_sample_once"] for epoch in summary["audit"]] == [True, True]


@pytest.mark.slow
def test_the_loader_of_the_page_trains_by_its_dotted_name(mine: Path) -> None:
    made = dlemu(mine, "datagen", "dataset.format=npz")
    assert made.returncode == 0, made.stderr
    trained(mine, "dataset.format=npz", "reader.data_loader=mine.loader", "train.synchronous=true")


@pytest.mark.slow
def test_a_loader_that_reads_files_itself_is_one_file(mine: Path) -> None:
    made = dlemu(mine, "datagen", "dataset.format=npz")
    assert made.returncode == 0, made.stderr
    chosen = ("reader.data_loader=mine.reading", "train.synchronous=true", "ranks=2")
    trained(mine, "dataset.format=npz", *chosen, "metric.ceiling_seconds=0.1")
    for wrong, why in (
        ("reader.odirect=true", "reader.odirect is true: the loader itself reads npz files"),
        ("dataset.format=npy", "dataset.format is 'npy', which the loader has no reader for; wanted one of npz"),
    ):
        refused = dlemu(mine, "train", "dataset.format=npz", *chosen, wrong)
        assert refused.returncode == 2
        assert why in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "library"])
def test_the_format_of_the_page_is_made_verified_and_read_by_its_dotted_name(engine: str, mine: Path) -> None:
    for command in (("datagen",), ("datagen", "verify")):
        ended = dlemu(mine, *command, "dataset.format=mine.raw")
        assert ended.returncode == 0, ended.stderr
    assert [len(path.read_bytes()) for path in (mine / "data" / "train").glob("*.raw")] == [80_000] * 12
    settings = ("reader.data_loader=threads", f"reader.engine={engine}", "reader.verify=true")
    trained(mine, "dataset.format=mine.raw", *settings)


@pytest.mark.slow
def test_a_reader_alone_reads_files_of_others(mine: Path) -> None:
    (mine / "data" / "train").mkdir(parents=True)
    for number in range(12):
        (mine / "data" / "train" / f"scan_{number}.dat").write_bytes(bytes(80_000))
    trained(mine, "dataset.format=mine.dat", "reader.data_loader=threads")


def test_the_page_names_what_is_there() -> None:
    for package, attribute in (("dlemu.loaders", "Loader"), ("datagen.formats", "Format")):
        assert attribute in PAGE.read_text()
        assert find(package, "threads" if package == "dlemu.loaders" else "npz", attribute).__name__ == attribute
