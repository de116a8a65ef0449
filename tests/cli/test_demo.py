"""`dlemu demo`: a first run that needs nothing, leaves what it says and touches nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_first_steps import ended
from tests.cli_runs import SMALL

LITTLE = [word for word in SMALL if not word.startswith(("dataset.format", "reader.batch_size"))]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to start it in; temporary folders are beside it."""
    temporary, here = tmp_path / "tmp", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.chdir(here)
    return here


@pytest.mark.slow
def test_it_makes_a_folder_of_its_own_and_names_it_at_the_end(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", *LITTLE, "train.epochs=1", "train.computation_time=0.001"]
    assert ended(words, monkeypatch) in (0, 1, 4)
    last = capsys.readouterr().out.splitlines()[-1]
    named = re.fullmatch(r"demo: everything is in (\S+); to remove it: rm -r \1", last)
    assert named, last
    folder = Path(named[1])
    assert folder.parent == elsewhere.parent / "tmp"
    assert {path.name for path in folder.iterdir()} == {"data", "result"}
    assert (folder / "result" / "summary.json").is_file()
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_a_folder_for_the_data_is_used_and_no_other_made(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["demo", *LITTLE, "train.epochs=1", "train.computation_time=0.001", "dataset.data_folder=mine"]
    assert ended(words, monkeypatch) in (0, 1, 4)
    assert not list((elsewhere.parent / "tmp").iterdir())
    assert {path.name for path in elsewhere.iterdir()} == {"mine", "results"}


def test_what_is_refused_leaves_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(["demo", "workload=unet3"], monkeypatch) == 2
    assert "did you mean unet3d?" in capsys.readouterr().err
    assert not list((elsewhere.parent / "tmp").iterdir())


def test_a_launcher_is_refused(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert ended(["demo"], monkeypatch) == 2
    assert "without a launcher such as mpirun" in capsys.readouterr().err
    assert not list((elsewhere.parent / "tmp").iterdir())
