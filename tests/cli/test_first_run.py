"""What a first run says: what to add to the command for a verdict."""

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
from dlemu.runner import datasets
from tests.parts import of_parts

FREE = "datagen.storage.posix.Storage.free_bytes"


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FREE, lambda *_: 10**15)


def refused(overrides: list[str], ranks: int, files_there: int) -> str:
    return str(preflight.no_verdict("Too few.", load(overrides), ranks, files_there))


def words_to_add(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize(("free", "words"), [(5e10, []), (5e10, ["dataset.num_files_train=168000"]), (1.9e10, [])])
def test_nobody_is_told_to_agree_to_what_does_not_fit(
    free: float, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FREE, lambda *_: int(free))
    words = ["workload=unet3d", f"dataset.data_folder={tmp_path}/none", *words]
    assert "--yes" not in refused(words, 18, 0)
    with pytest.raises(SpaceError, match=r"num_files_train=\d+, the most that fit") as full:
        CliRunner().invoke(cli, ["train", *words, "ranks=18", "--make"], catch_exceptions=False)
    (fits,) = re.findall(r"num_files_train=\d+", str(full.value))
    allow(load([*words, f"dataset.{fits}"]), 1, 18, yes=False)


def test_the_first_words_take_it_whole_and_the_second_try_it() -> None:
    text = refused(["workload=unet3d"], 18, 0)
    full, small = words_to_add(text)
    assert full[:2] == ["--make", "dataset.num_files_train=2520"]
    assert {"scale=laptop", "--make", "dataset.data_folder=data/unet3d-laptop"} <= set(small)
    assert "Wanted 2,520 files (369.4 GB) for 18 ranks x batch 7" in text


def test_words_that_can_not_stay_are_replaced() -> None:
    overrides = ["workload=unet3d", "dataset.num_files_train=168", "scale=laptop"]
    (only,) = words_to_add(refused(overrides, 18, 168))
    assert {"dataset.num_files_train=2520", "dataset.data_folder=data/unet3d-2520"} <= set(only)


def test_a_count_of_the_users_own_stays_where_it_can_be_judged() -> None:
    text = refused(["workload=unet3d", "dataset.num_files_train=100"], 4, 0)
    assert "dataset.num_files_train" not in text
    assert "Wanted 100 files (14.7 GB)" in text


def test_nothing_large_is_made_unless_somebody_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FREE, lambda *_: 10**13)
    workload = load(["workload=unet3d"])
    allow(workload, 10**10, 18, yes=False)
    allow(workload, 10**12, 18, yes=True)
    with pytest.raises(UserError, match=r"1,000\.0 GB will be made in data/unet3d for 18 .*add --yes.*scale=laptop"):
        allow(workload, 10**12, 18, yes=False)


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
