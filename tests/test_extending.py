"""The page about modules of one's own shows a loader and a format that train."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from datagen.registry import find
from datagen.storage.storage_base import StorageSpec, open_storage, read_whole
from tests.e2e import harness
from tests.e2e.harness import Ended

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
(LOADER,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
EXAMPLES = {path.stem: path.read_text() for path in (PAGE.parent / "examples").glob("my_*.py")}
SETTINGS = EXAMPLES["my_settings"]
READER = """
from datagen.errors import UserError
from mine.my_format import Format as Raw

class Format(Raw):
    def file_bytes(self, spec, shapes):
        return None

    def write(self, job, writer, buffer):
        raise UserError("mine.dat only reads")
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    package = tmp_path / "mine"
    package.mkdir()
    texts = {"loader": LOADER, "dat": READER, **EXAMPLES}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    return tmp_path


def dlemu(where: Path, *words: str, folder: str = "") -> Ended:
    shape = ("num_files_train=12", "num_samples_per_file=2", "record_length_bytes=40000")
    settings = [f"dataset.{one}" for one in (f"data_folder={folder or where / 'data'}", *shape)]
    return harness.dlemu(
        *words, *settings, "reader.batch_size=4", PYTHONPATH=os.pathsep.join([str(where), str(PAGE.parent.parent)])
    )


def trained(where: Path, *settings: str, folder: str = "") -> dict[str, Any]:
    run = where / "run"
    quick = ("train.computation_time=0.005", "metric.ceiling_seconds=0", "output.report=false")
    fixed = ("train.epochs=2", "telemetry.enabled=false", *quick, f"output.folder={run}")
    dlemu(where, "train", *fixed, *settings, folder=folder).assert_ran()
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert summary["complete"] is True
    assert summary["each_sample_once"] == [True, True]
    return summary


@pytest.mark.slow
def test_the_loader_of_the_page_trains_by_its_dotted_name(mine: Path) -> None:
    dlemu(mine, "datagen", "dataset.format=npz").assert_ended(0)
    trained(mine, "dataset.format=npz", "reader.data_loader=mine.loader", "train.synchronous=true")


@pytest.mark.slow
def test_a_loader_that_reads_files_itself_is_one_file(mine: Path) -> None:
    dlemu(mine, "datagen", "dataset.format=npz").assert_ended(0)
    chosen = ("reader.data_loader=mine.my_reader", "train.synchronous=true", "ranks=2")
    trained(mine, "dataset.format=npz", *chosen, "metric.ceiling_seconds=0.1")
    for wrong, why in (
        ("reader.odirect=true", "reader.odirect is true: the loader itself reads npz files"),
        ("dataset.format=npy", "dataset.format is 'npy', for which the loader has no reader; wanted one of npz"),
    ):
        dlemu(mine, "train", "dataset.format=npz", *chosen, wrong).assert_ended(2, why)


@pytest.mark.slow
def test_the_format_of_the_page_is_made_verified_and_read_by_its_dotted_name(mine: Path) -> None:
    for command in (("datagen",), ("datagen", "verify")):
        dlemu(mine, *command, "dataset.format=mine.my_format").assert_ended(0)
    assert [len(path.read_bytes()) for path in (mine / "data" / "train").glob("*.my_format")] == [80_000] * 12
    for engine in ("fast", "library"):
        settings = ("reader.data_loader=threads", f"reader.engine={engine}", "reader.verify=true")
        trained(mine, "dataset.format=mine.my_format", *settings)
        shutil.rmtree(mine / "run")


@pytest.mark.slow
def test_a_reader_alone_reads_files_of_others(mine: Path) -> None:
    (mine / "data" / "train").mkdir(parents=True)
    for number in range(12):
        (mine / "data" / "train" / f"scan_{number}.dat").write_bytes(bytes(80_000))
    trained(mine, "dataset.format=mine.dat", "reader.data_loader=threads")


@pytest.mark.slow
def test_the_storage_of_the_page_holds_a_dataset_and_checkpoints_by_its_dotted_name(mine: Path) -> None:
    """All of datagen and training works on a storage that is one file of the user's: that is what a storage is."""
    there = ("storage.storage_type=mine.my_store", f"storage.storage_root={mine / 'files.db'}", "dataset.format=npz")
    for command in (("datagen", "ranks=2"), ("datagen", "verify")):
        dlemu(mine, *command, *there, folder="set").assert_ended(0)
    saving = ("ranks=2", "workflow.checkpoint=true", "checkpoint.checkpoint_folder=saved")
    for loader, engine in (("pytorch", "fast"), ("threads", "matched")):
        reader = ("batch_size=2", "verify=true", "evict_page_cache=epochs", f"data_loader={loader}", f"engine={engine}")
        summary = trained(mine, *there, *saving, *(f"reader.{one}" for one in reader), folder="set")
        assert summary["environment"]["storage"]["file_system"] == "mine.my_store"
        shutil.rmtree(mine / "run")
    with contextlib.closing(sqlite3.connect(mine / "files.db")) as database:
        paths = {path for (path,) in database.execute("SELECT path FROM files")}
    assert "set/train/img_00_of_12.npz" in paths
    assert "saved/epoch_2_block_1/rank_0.ckpt" in paths
    assert {path.split("/")[0] for path in paths} == {"set", "saved"}
    assert sorted(path.name for path in mine.iterdir()) == ["files.db", "mine"], "no data lies anywhere else"


def test_the_storage_of_the_page_keeps_its_promises(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine))
    storage = open_storage(StorageSpec(type="mine.my_store", root=str(mine / "files.db")))
    with pytest.raises(FileNotFoundError), storage.entries("set"):
        pass
    assert not storage.is_folder("set")
    for path in ("set/a/file", "set/other"):
        writer = storage.create(path)
        writer.skip(2)
        writer.write(b"three")
        writer.write_at(b"on", 0)
        assert not storage.is_folder(path)
        writer.commit()
    assert bytes(read_whole(storage, "set/other")) == b"onthree"
    with storage.entries("set") as entries:
        assert {entry.name: entry.is_dir() for entry in entries} == {"a": True, "other": False}
    assert list(storage.sizes(["set/a/file", "set/none"])) == [7, None]
    storage.remove("set/other")
    with pytest.raises(FileNotFoundError):
        storage.open("set/other")


def test_the_page_names_what_is_there() -> None:
    kinds = (("dlemu.loaders", "threads", "Loader"), ("datagen.formats", "npz", "Format"))
    for package, name, attribute in (*kinds, ("datagen.storage", "posix", "Storage")):
        assert attribute in PAGE.read_text()
        assert find(package, name, attribute).__name__ == attribute
