"""Whatever becomes of the terminal and of the current folder: every command's status and result are its own."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlemu.cli import commands
from dlemu.metrics.verdict import COMPLETED
from tests.e2e.harness import DLEMU, DLIO, small_run, training, until
from tests.parts import of_parts
from tests.report.folders import write_run

LASTS_SECONDS = 240
LIGHT = ("metric.scaling_seconds=0", "ranks=2")


def ended(streams: str, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {streams}', *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LASTS_SECONDS,
        cwd=cwd,
    )


def run_settings(folder: Path, dataset: Path) -> list[str]:
    return small_run(folder, dataset, *LIGHT)


def cheapest(command: str, folder: Path, dataset: Path) -> tuple[list[str], int, str]:
    """Return the cheapest use of a command that says something, its status, and what it leaves in the folder."""
    train = run_settings(folder / "run", dataset)
    few = ("num_checkpoints_write=1", "num_checkpoints_read=0", "time_between_checkpoints=0")
    checkpoint = ["model.model_size_bytes=1000000", "output.report=false", *(f"checkpoint.{key}" for key in few)]
    match command:
        case "train":
            return train, 0, "run/summary.json"
        case "checkpoint":
            places = [f"checkpoint.checkpoint_folder={folder / 'ck'}", f"output.folder={folder / 'run'}"]
            return [*checkpoint, *places, "ranks=1"], 0, "run/summary.json"
        case "datagen":
            return run_settings(folder / "run", folder / "data"), 0, "data/dlemu.json"
        case "size":
            return [*train, "--cfg"], 0, ""
        case "doctor" | "sweep" | "together" | "try" | "watch" | "schema":
            return ["--help"], 0, ""
        case "probe":
            words = ["--sizes", "4k", "--depths", "1", "--seconds", "0.1", "--file-size", "1m", "--output"]
            return [str(folder), *words, str(folder / "probe")], 0, "probe/probe.json"
        case "predict":
            places = [f"output.folder={folder / 'prediction'}", "output.report=false"]
            return ["workload=unet3d", "ranks=1", "--mb-per-second", "100000", *places], 0, "prediction/predict.json"
        case "compare":
            sides = [str(write_run(folder / name, telemetry=False)) for name in "ab"]
            return [*sides, "--output", str(folder / "compared"), "--json"], 2, "compared/compare.json"
        case "report":
            return [str(write_run(folder / "run", telemetry=False))], 0, "run/report.html"
        case "workloads":
            return [], 0, ""
        case "workload":
            return ["show", "unet3d"], 0, ""
    if (use := of_parts("CHEAPEST").get(command)) is not None:
        words, status, left = use(folder)
        return words, status, left
    raise AssertionError(f"no use of `dlemu {command}` here: add its cheapest")


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_a_full_stdout_and_closed_streams_turn_no_status_and_lose_no_result(
    command: str, dataset: Path, tmp_path: Path
) -> None:
    words, status, left = cheapest(command, tmp_path, dataset)
    assert ended("<&- >/dev/full 2>&-", DLEMU, command, *words, cwd=tmp_path).returncode == status
    assert (tmp_path / left).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("program", "streams"), [*itertools.product([DLEMU, DLIO], ["<&- >&- 2>&-", "2>/dev/full"])])
def test_a_run_is_whole_whatever_becomes_of_its_streams(
    program: str, streams: str, dataset: Path, tmp_path: Path
) -> None:
    flat = [f"dataset.{key}=0" for key in ("num_files_eval", "num_subfolders_train", "num_subfolders_eval")]
    # DLIO's workload default evaluates, in folders.
    as_dlio = ["train"] if program == DLEMU else ["workflow.evaluation=false", *flat]
    command = [program, *as_dlio, *run_settings(tmp_path / "run", dataset)]
    result = ended(streams, *command, cwd=tmp_path)
    assert (result.returncode in COMPLETED, "Traceback" in result.stdout + result.stderr) == (True, False)
    folder = tmp_path / "run" / ("dlemu" if program == DLIO else "")
    assert json.loads((folder / "summary.json").read_text())["complete"] is True


@pytest.mark.slow
def test_a_service_without_streams_gets_its_run_from_python(dataset: Path, tmp_path: Path) -> None:
    settings = run_settings(tmp_path / "run", dataset)
    script = f"import dlemu\nassert dlemu.train({settings!r}).summary.complete"
    assert ended("<&- >&- 2>&-", sys.executable, "-c", script).returncode == 0


def saying(text: str, *arguments: str) -> list[str]:
    script = f"from dlemu.cli.outlets import unfailing_streams\nwith unfailing_streams(): print({text!a} * 100_000)"
    return [sys.executable, "-c", script, *arguments]


def test_a_reader_that_leaves_and_a_terminal_that_hangs_up_are_no_failures() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ours, theirs = os.openpty()
    os.close(ours)
    for descriptor in (writer, theirs):
        with open(descriptor, "w") as gone:
            process = subprocess.run(saying("x", "--json"), stdout=gone, stderr=subprocess.PIPE, text=True)
        assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--json"], 2)])
def test_what_a_program_was_to_read_and_is_not_whole_is_no_success(arguments: list[str], status: int) -> None:
    result = ended(">/dev/full", *saying("x", *arguments))
    assert result.returncode == status
    assert result.stderr == "dlemu: stdout could not be written (No space left on device): it is incomplete\n"


@pytest.mark.parametrize(
    "settings", [{"PYTHONIOENCODING": "ascii:strict"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=str
)
def test_names_that_a_terminal_has_no_letters_for_are_escaped(settings: dict[str, str]) -> None:
    """In the locales C and POSIX, too, where Python escapes some letters only."""
    told = subprocess.run(saying("\udcff\xfc"), capture_output=True, text=True, env=os.environ | settings)
    assert (told.returncode, told.stdout) == (0, "\\udcff\\xfc" * 100_000 + "\n")


def test_a_terminal_that_another_program_made_non_blocking_gets_all() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader) as told, subprocess.Popen(saying("x"), stdout=writer) as process:
        os.close(writer)
        assert len(told.read()) == 100_001
        assert process.wait() == 0


@pytest.mark.parametrize("command", ["workloads", "train"])
def test_a_current_folder_that_was_removed_is_named(command: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    result = subprocess.run(
        ["sh", "-c", f'rmdir "{gone}"; exec {DLEMU} {command}'], cwd=gone, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr == (
        "dlemu: the current folder was removed: change to one that exists (`cd`) and start again\n"
    )


@pytest.mark.slow
def test_a_current_folder_that_is_removed_in_mid_run_ends_nothing(dataset: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    settings = [*run_settings(tmp_path / "run", dataset), "train.epochs=6"]
    with subprocess.Popen([DLEMU, "train", *settings], cwd=gone, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: training(tmp_path / "run", ranks=2) or process.poll() is not None, "the first steps")
        gone.rmdir()
        _, errors = process.communicate(timeout=LASTS_SECONDS)
    assert process.returncode == 0, errors
