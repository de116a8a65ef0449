"""Every command, in folders that hold files of the user's: refused before anything is touched, or beside them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.harness import DLIO, Ended, dlemu, small_run, start, until, wait, without
from tests.fuzzing.ends import commands, has_traceback, make_inputs
from tests.goldens.render import RESULTS
from tests.parts import of_parts
from tests.users_files import UsersFiles

pytestmark = pytest.mark.slow

Command = Callable[[Path], list[str]]
ENDS: dict[str, signal.Signals | None] = {
    "train": None,
    "threads": signal.SIGINT,
    "saving": signal.SIGKILL,
    "mpirun": None,
    "checkpoint": signal.SIGINT,
    "datagen": signal.SIGKILL,
    "probe": signal.SIGINT,
    "sweep": signal.SIGINT,
    "predict": None,
    "size": signal.SIGKILL,
    "dlio": signal.SIGINT,
    "together": signal.SIGINT,
    **of_parts("ENDS"),
}
"""How the first of two calls ends here, None: by itself; `scripts/fuzz ends` draws it."""
STUDIES = ("size", *of_parts("MANY_RUNS"))
"""Lists of many runs, each as `train` or `probe`: the second call goes on with what the first left, and is ended."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    """Command lines for a folder of results; whatever else they make begins with its name."""
    top = tmp_path_factory.mktemp("sources")
    make_inputs(top, 12, (60, 40))

    def dlio(folder: Path) -> list[str]:
        few = without(small_run(folder, top / "data", "dataset.format=npz"), "workload", "output", "ranks", "metric")
        return [DLIO, "workload=unet3d_v100", *(f"++workload.{word}" for word in few), f"++hydra.run.dir={folder}"]

    more = {name: partial(words, top) for name, words in of_parts("MORE_COMMANDS").items()}
    return commands(top) | more | {"dlio": dlio}


def test_every_command_that_fuzzing_ends_is_tried(everything: dict[str, Command]) -> None:
    assert set(everything) == set(ENDS)


@pytest.mark.parametrize("name", [name for name in ENDS if name not in ("mpirun", "dlio")])
def test_a_folder_of_results_with_files_of_others_is_refused(
    name: str, everything: dict[str, Command], tmp_path: Path
) -> None:
    """`dlio_benchmark` works beside the files of those who start it, as DLIO does; mpirun is of `train`."""
    theirs, folder = UsersFiles(), tmp_path / "case"
    command = everything[name](folder)
    made = Path(f"{folder}-made") if name == "datagen" else folder
    theirs.put(made)
    before = sorted(tmp_path.rglob("*"))
    ended = wait(start(*command[1:], program=command[0], cwd=tmp_path))
    ended.assert_ended(2, "did not make, such as", str(made))
    setting = "dataset.data_folder" if name == "datagen" else "--output" if "--output" in command else "output.folder"
    assert f"{setting} is " in ended.err
    assert theirs.changed() == []
    assert sorted(tmp_path.rglob("*")) == before, "nothing was made there, nor beside it"


@pytest.mark.parametrize("name", ENDS)
def test_files_that_a_user_puts_beside_those_of_dlemu_stay(
    name: str, everything: dict[str, Command], tmp_path: Path
) -> None:
    """Put in as soon as the command has made its folders; then it ends, and is called again."""
    theirs, folder = UsersFiles(), tmp_path / "case"
    command = everything[name](folder)
    process = start(*command[1:], program=command[0], cwd=tmp_path)
    until(lambda: process.poll() is not None or any(_files_below(tmp_path)), "the first file")
    theirs.put_everywhere(tmp_path)
    number = ENDS[name]
    if number is not None and process.poll() is None:
        os.killpg(process.pid, number)
    ended = wait(process)
    if name != "dlio" or "that dlemu did not write" not in ended.err:  # files with DLIO's names came before its own
        assert_as_expected(ended, number)
    assert theirs.changed() == []
    theirs.put_everywhere(tmp_path)
    before = _files_below(tmp_path)
    process = start(*command[1:], program=command[0], cwd=tmp_path)
    if name in STUDIES:
        until(lambda: process.poll() is not None or len(_files_below(tmp_path)) > len(before) + 2, "new files")
        process.send_signal(signal.SIGINT)
    ended = wait(process)
    assert not has_traceback(ended.err), ended.err
    assert theirs.changed() == [], f"{ended.status}: {ended.out} {ended.err}"


def assert_as_expected(ended: Ended, number: signal.Signals | None) -> None:
    """The user's files were no hindrance; an end by a signal may come too late."""
    assert not has_traceback(ended.err), ended.err
    statuses = {0, 1, 3, 4, 5} if number is None else {0, 1, 3, 4, 5, 128 + number, -number}
    assert ended.status in statuses, f"{ended.out} {ended.err}"


def _files_below(top: Path) -> list[str]:
    return [name for folder, _, names in os.walk(top) for name in names if "-drive" not in folder]


@pytest.fixture(scope="module")
def result(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("result") / "run"
    assert dlemu("train", *small_run(folder, dataset)).ran
    return folder


OPTIONS: dict[str, Callable[[Path, Path], list[str]]] = {
    "compare --output": lambda run, folder: ["compare", str(run), str(run), "--output", str(folder)],
    "report --png": lambda run, folder: ["report", str(run), "--output", str(folder / "page.html"), "--png"],
    "train --export-dlio": lambda run, folder: ["train", "workload=bert", "--export-dlio", str(folder / "b.yaml")],
    **of_parts("PLACE_OPTIONS"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_name_a_place_leave_what_lies_there(option: str, result: Path, tmp_path: Path) -> None:
    theirs, folder = UsersFiles(), tmp_path / "place"
    theirs.put(folder)
    theirs.put(folder / "figures")
    ended = dlemu(*OPTIONS[option](result, folder), cwd=tmp_path)
    assert "Traceback" not in ended.err
    assert theirs.changed() == []
    refused = option == "compare --output"
    assert (ended.status == 2) == refused, ended.err
    assert ("did not make, such as" in ended.err) == refused


def test_a_figure_of_others_is_not_replaced(tmp_path: Path) -> None:
    few = shutil.copytree(RESULTS / "probe", tmp_path / "result")  # its page has few figures
    words = ("report", str(few), "--output", str(tmp_path / "page.html"), "--svg")
    assert dlemu(*words).status == 0
    own = next((tmp_path / "figures").glob("*.svg"))
    assert dlemu(*words).status == 0, "its own it makes anew"
    (tmp_path / "figures").rename(tmp_path / "old")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / own.name).write_text("of the user")
    dlemu(*words).assert_ended(2, "dlemu did not write it")
    assert (tmp_path / "figures" / own.name).read_text() == "of the user"


def test_a_checkpoint_of_others_is_not_replaced(tmp_path: Path) -> None:
    theirs, folder = UsersFiles(), tmp_path / "saved"
    theirs.put(folder / "global_epoch1_step1")
    theirs.put(tmp_path / "elsewhere")
    words = ["workload=llama3_8b", "scale=laptop", "ranks=1", f"checkpoint.checkpoint_folder={folder}"]
    dlemu("checkpoint", *words, f"output.folder={tmp_path / 'run'}").assert_ended(2, "did not write")
    (folder / "global_epoch1_step1").rename(folder / "moved")
    (folder / "global_epoch1_step1").symlink_to(tmp_path / "elsewhere")
    dlemu("checkpoint", *words, f"output.folder={tmp_path / 'run'}").assert_ended(2, "is a link")
    (folder / "moved").rename(tmp_path / "back")
    assert [line for line in theirs.changed() if "global_epoch1_step1" not in line] == []


def test_training_replaces_no_checkpoint_that_it_did_not_write(dataset: Path, tmp_path: Path) -> None:
    theirs, folder = UsersFiles(), tmp_path / "saved"
    theirs.put(folder / "epoch_1_block_1")
    saving = ("workflow.checkpoint=true", "train.epochs=1", f"checkpoint.checkpoint_folder={folder}")
    ended = dlemu("train", *small_run(tmp_path / "run", dataset, *saving))
    ended.assert_ended(2, "epoch_1_block_1 holds files that dlemu did not write")
    assert theirs.changed() == []
    own = [word.replace("saved", "own") for word in saving]
    assert dlemu("train", *small_run(tmp_path / "run", dataset, *own)).ran
    assert dlemu("train", *small_run(tmp_path / "again", dataset, *own)).ran, "its own it replaces"


def test_a_link_planted_where_results_go_is_not_followed(dataset: Path, tmp_path: Path) -> None:
    """In a folder that an earlier command left; whoever may write there plants names that dlemu will write."""
    behind = tmp_path / "behind"
    behind.write_text("of the user")
    folder = tmp_path / "run"
    process = start("train", *small_run(folder, dataset, "output.report=false"))
    until(lambda: process.poll() is not None or (folder / "live").is_dir(), "the folder")
    for name in ("log.txt", "summary.json", "config.yaml", ".summary.json.part", "facts.json.part", "steps.parquet"):
        (folder / name).symlink_to(behind)
    wait(process).assert_ran()
    assert behind.read_text() == "of the user"
    assert not (folder / "summary.json").is_symlink()
