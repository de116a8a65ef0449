"""What a first run says: one command that leads to a verdict, in the user's own words."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from datagen.errors import SpaceError, UserError
from dlemu.cli import cli
from dlemu.cli.frontends import allow
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.training import preflight
from dlemu.jobs.training.preflight import with_words
from dlemu.runner import datasets
from dlemu.runner.job import NoVerdictError
from tests.parts import of_parts

FREE = "datagen.storage.posix.Storage.free_bytes"
TYPED = ["mpirun", "-np", "18", "dlemu", "train", "workload=unet3d"]


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FREE, lambda *_: 10**15)


def advise(overrides: list[str], ranks: int, files_there: int) -> str:
    return preflight.advise(NoVerdictError("", load(overrides), ranks, files_there, 0), TYPED, overrides, None)


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize(("free", "words"), [(5e10, []), (5e10, ["dataset.num_files_train=168000"]), (1.9e10, [])])
def test_nobody_is_told_to_agree_to_what_does_not_fit(
    free: float, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FREE, lambda *_: int(free))
    words = ["workload=unet3d", f"dataset.data_folder={tmp_path}/none", *words]
    text = advise(words, 18, 0)
    assert "are free: set dataset.data_folder to a larger file system." in text
    assert "--yes" not in text
    with pytest.raises(SpaceError, match=r"num_files_train=\d+, the most that fit") as full:
        CliRunner().invoke(cli, ["train", *words, "ranks=18", "--make"], catch_exceptions=False)
    (fits,) = re.findall(r"num_files_train=\d+", str(full.value))
    allow(load([*words, f"dataset.{fits}"]), f"{tmp_path}/none", 18, 1, yes=False)


def test_the_first_command_tries_it_and_the_second_takes_it_whole() -> None:
    overrides = ["workload=unet3d"]
    small, full = commands(advise(overrides, 18, 0))
    assert small[:6] == full[:6] == TYPED
    assert {"scale=laptop", "--make", "dataset.data_folder=data/unet3d-laptop"} <= set(small)
    assert full[6:8] == ["--make", "--yes"]
    text = advise(overrides, 18, 0)
    assert "20 take 2,520" in text
    assert "369.4 GB" in text
    assert "1.4 GB" in text


def test_words_that_can_not_stay_are_replaced() -> None:
    overrides = ["workload=unet3d", "dataset.num_files_train=168", "scale=laptop"]
    (only,) = commands(advise(overrides, 18, 168))
    assert {"dataset.num_files_train=2520", "dataset.data_folder=data/unet3d-2520"} <= set(only)
    assert with_words(["dlemu", "train", "++a.b=1", "--make"], ["--make", "a.b=2"]) == "dlemu train --make a.b=2"


def test_a_count_of_the_users_own_stays_where_it_can_be_judged() -> None:
    overrides = ["workload=unet3d", "dataset.num_files_train=100"]
    text = advise(overrides, 4, 0)
    small, full = commands(text)
    assert not [word for word in (*small, *full) if word.startswith("dataset.num_files_train")]
    assert "At full size (100 files, 14.7 GB" in text
    assert "To try it (100 files" in text


def test_nothing_large_is_made_unless_somebody_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load(["workload=unet3d"])
    allow(workload, "data", 18, 10**10, yes=False)
    allow(workload, "data", 18, 10**12, yes=True)
    with pytest.raises(UserError, match=r"1,000\.0 GB will be made in data for 18 ranks.*add --yes.*scale=laptop"):
        allow(workload, "data", 18, 10**12, yes=False)


@pytest.mark.parametrize("command", ["size", "predict", *of_parts("MADE_FIRST")])
def test_a_large_dataset_is_made_by_no_command_unless_somebody_agrees(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def record(workload: Workload, *_: object, **__: object) -> None:
        made.append(workload.dataset.data_folder)
        raise UserError("stopped here")

    monkeypatch.setattr(datasets, "make_on_this_host", record)
    words = ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=500", "dataset.data_folder=data"]
    words = of_parts("MADE_FIRST").get(command, words)
    with pytest.raises(UserError, match=r"GB will be made in \S+ \(.* are free there\): add --yes to make them"):
        CliRunner().invoke(cli, [command, *words, "--make"], catch_exceptions=False)
    assert made == []
    with pytest.raises(UserError, match="stopped here"):
        CliRunner().invoke(cli, [command, *words, "--make", "--yes"], catch_exceptions=False)
    assert len(made) == 1
