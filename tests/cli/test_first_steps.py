"""What a new user types first, typos and all: a message that leads on, and nothing left behind by what was refused."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from datagen.errors import SpaceError, UserError
from dlemu.cli import MAIN_COMMANDS, cli, commands, guarded
from dlemu.cli.frontends import confirm_making, make_here
from dlemu.cli.options import Number
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.training import preflight
from dlemu.results.kinds import kinds
from dlemu.runner import datasets
from tests.parts import of_parts
from tests.runs import present


def ended(words: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("sys.argv", ["dlemu", *words])
    with pytest.raises(SystemExit) as end:
        guarded(cli, "dlemu")
    return end.value.code


FREE = "datagen.storage.posix.Storage.free_bytes"


@pytest.fixture(autouse=True)
def in_an_empty_folder_of_a_large_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FREE, lambda *_: 10**15)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """Run a command line that ends with status 2; returns what it says."""

    def run(words: list[str]) -> str:
        assert ended(words, monkeypatch) == 2
        return capsys.readouterr().err

    return run


Refused = Callable[[list[str]], str]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "there is no command 'trian': did you mean train? known: try, train, size,"),
        (["run"], "there is no command 'run': known: try, train,"),
        (["ranks=4"], "ranks=4 is a setting, which follows a command, as in `dlemu train ranks=4`"),
        (["gpus"], "ranks=... is a setting, which follows a command"),
        (["num_client_hosts=2"], "'num_client_hosts=2': did you mean the hosts on which mpirun or srun starts ranks"),
        (["/mnt/nome"], "it is no folder, either: wanted one that exists, as in `dlemu /mnt/nvme`"),
        (["train", "--ranks", "4"], "settings are given as KEY=VALUE, without dashes: ranks=...\n"),
        (["predict", "--gpus=8"], "without dashes: ranks=..."),
        (["datagen", "--yes"], "No such option"),
        (["checkpoint", "--make"], "No such option"),
        (["datagen", "verify", "--fsync"], "--fsync is for writing, and `dlemu datagen verify` only reads"),
        (["train", "--num-client-hosts", "2"], "did you mean the hosts on which mpirun or srun starts ranks"),
        (["train", "workload=unet3d", "dataset.format=.jpg"], "dataset.format is '.jpg': did you mean jpeg?"),
        (["train", "model=unet3d"], "model=unet3d only names the results: wanted workload=unet3d"),
        (["train", "--data-dir", "/mnt"], "without dashes: dataset.data_folder=..."),
        (["train", "unet3d"], "'unet3d' is not a setting: did you mean workload=unet3d? wanted KEY=VALUE"),
    ],
)
def test_a_typo_gets_the_word_that_was_meant(words: list[str], said: str, refused: Refused) -> None:
    assert said in refused(words)


@pytest.mark.parametrize(
    ("command", "place"), [("train", "file"), ("size", "file/below"), ("datagen", "file"), ("datagen verify", "file")]
)
def test_a_file_in_place_of_a_dataset_is_named_as_one(
    command: str, place: str, tmp_path: Path, refused: Refused
) -> None:
    """No command is proposed that would make a dataset in it."""
    (tmp_path / "file").touch()
    words = [*command.split(), "workload=unet3d", f"dataset.data_folder={tmp_path / place}", "accelerator=h100"]
    said = refused(words)
    assert (
        f"{tmp_path / place} is a file, not a folder, or is below a file: set dataset.data_folder to the folder" in said
    )
    assert "--make" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["train", "workload=unet3d", "dataset.data_folder=\udce4"],
        ["datagen", "workload=unet3d", "dataset.data_folder=\udce4"],
        ["checkpoint", "workload=llama3_8b", "scale=laptop", "output.folder=\udce4"],
        ["probe", "\udce4"],
        ["sweep", "workload=unet3d", "dataset.data_folder=\udce4,b"],
        ["compare", "a", "\udce4"],
        ["report", "\udce4"],
        *of_parts("NO_TEXT").values(),
    ],
)
def test_a_name_that_is_no_text_is_refused(words: list[str], tmp_path: Path, refused: Refused) -> None:
    """As results could not name it: no run is lost to that at its end, and nothing is made."""
    (tmp_path / "\udce4").mkdir()
    said = refused(words)
    assert "has bytes that are not valid utf-8, so results could not name it: rename it" in said
    assert len(said.splitlines()) == 1
    assert [os.listdir(tmp_path), os.listdir(tmp_path / "\udce4")] == [["\udce4"], []]


def test_what_cannot_be_decoded_keeps_its_secret(refused: Refused) -> None:
    said = refused(["train", "storage.storage_options.secret=keepthistoyourself\udce4"])
    assert "has bytes that are not valid" in said
    assert "keepthis" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoint"],
        ["checkpoint", "model.model_size_bytes=1000000000000000000", "checkpoint.checkpoint_folder=a/b"],
        ["checkpoint", "workload=llama3_8b", "model.num_layers=100000"],
        ["datagen", "dataset.data_folder=small/d", "dataset.record_length_bytes=10000000000000000"],
        ["datagen", "dataset.data_folder=s3://bucket/unet3d"],
        ["train", "workload=unet3d"],
        ["train", "workflow.generate_data=true", "dataset.data_folder=s3://bucket/unet3d"],
        ["train", "workload=unet3d", "workflow.generate_data=true", "ranks=100000"],
        ["size", "workload=unet3d", "accelerator=h100"],
        ["size", "--make", "workload=unet3d", "accelerator=h100", "dataset.num_files_train=9"],
        ["sweep", "workload=unet3d", "ranks=1,2"],
        *of_parts("REFUSED").values(),
        ["probe", "nowhere"],
    ],
)
def test_a_command_that_is_refused_leaves_nothing(words: list[str], tmp_path: Path, refused: Refused) -> None:
    assert refused(words)
    assert not list(tmp_path.iterdir())


def test_every_option_that_takes_a_number_has_a_range_without_nan() -> None:
    pending: list[click.Command] = [cli]
    seen = 0
    for command in pending:
        if isinstance(command, click.Group):
            context = click.Context(command)
            known = [command.get_command(context, name) for name in command.list_commands(context)]
            pending += [below for below in known if below is not None]
        for parameter in command.params:
            if isinstance(parameter.type, click.types.FloatParamType):
                assert isinstance(parameter.type, Number), (command.name, parameter.name)
                assert parameter.type.max is not None
                seen += 1
    assert seen >= 5


def test_help_names_eight_commands_with_an_example_each_and_all_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for words in (["--help"], ["help", "--all"]):
        cli.main(words, standalone_mode=False)
        shown[words[-1]] = capsys.readouterr().out
    first = [line.split()[0] for line in shown["--help"].splitlines() if re.match("  [a-z]+  ", line)]
    assert first == [name for name in MAIN_COMMANDS if name in commands()]
    assert len(MAIN_COMMANDS) == 8
    for name in first:
        assert f"dlemu {name} " in shown["--help"]
    assert shown["--help"].splitlines()[-1] == "more: dlemu help --all"
    assert "KEY=VALUE sets what is run" in shown["--help"]
    assert all(f"\n  {name} " in shown["--all"] for name in commands())


@pytest.mark.parametrize("name", sorted({kind.command for kind in kinds() if kind.command}))
def test_every_command_that_leaves_a_result_prints_it_for_programs(name: str) -> None:
    command = present(cli.get_command(click.Context(cli), name))
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


def test_what_is_made_first_is_not_said_where_json_is_wanted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["dataset.num_files_train=2", "dataset.record_length_bytes=1000", f"dataset.data_folder={tmp_path}"]
    for as_json in (True, False):
        make_here(load([*words, f"dataset.data_folder={tmp_path / str(as_json)}"]), as_json=as_json, yes=False)
        said = capfd.readouterr()
        assert ("made 2 files" in said.out) is not as_json
        assert ("made 2 files" in said.err) is as_json


def no_verdict(overrides: list[str], ranks: int, existing_files: int) -> str:
    return str(preflight.no_verdict_error("Too few.", load(overrides), ranks, existing_files))


def words_to_add(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize(("free", "words"), [(5e10, []), (5e10, ["dataset.num_files_train=168000"]), (1.9e10, [])])
def test_nobody_is_told_to_agree_to_what_does_not_fit(
    free: float, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FREE, lambda *_: int(free))
    words = ["workload=unet3d", f"dataset.data_folder={tmp_path}/none", *words]
    assert "--yes" not in no_verdict(words, 18, 0)
    with pytest.raises(SpaceError, match=r"num_files_train=\d+, the most that fit") as full:
        CliRunner().invoke(cli, ["train", *words, "ranks=18", "--make"], catch_exceptions=False)
    (fits,) = re.findall(r"num_files_train=\d+", str(full.value))
    confirm_making(load([*words, f"dataset.{fits}"]), 1, 18, yes=False)


def test_the_first_words_take_it_whole_and_the_second_try_it_and_words_that_can_not_stay_are_replaced() -> None:
    text = no_verdict(["workload=unet3d"], 18, 0)
    full, small = words_to_add(text)
    assert full[:2] == ["--make", "dataset.num_files_train=2520"]
    assert {"scale=laptop", "--make", "dataset.data_folder=data/unet3d-laptop"} <= set(small)
    assert "Wanted 2,520 files (369.4 GB) for 18 ranks x batch 7" in text
    (only,) = words_to_add(no_verdict(["workload=unet3d", "dataset.num_files_train=168", "scale=laptop"], 18, 168))
    assert {"dataset.num_files_train=2520", "dataset.data_folder=data/unet3d-2520"} <= set(only)
    judged = no_verdict(["workload=unet3d", "dataset.num_files_train=100"], 4, 0)
    assert ("Wanted 100 files (14.7 GB)" in judged, "dataset.num_files_train" in judged) == (True, False)


def test_nothing_large_is_made_unless_somebody_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FREE, lambda *_: 10**13)
    workload = load(["workload=unet3d"])
    confirm_making(workload, 10**10, 18, yes=False)
    confirm_making(workload, 10**12, 18, yes=True)
    with pytest.raises(UserError, match=r"1,000\.0 GB will be made in data/unet3d for 18 .*add --yes.*scale=laptop"):
        confirm_making(workload, 10**12, 18, yes=False)


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
