"""dlemu in Python: as the page says, typed, silent, and clean when it is interrupted."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

import dlemu
from dlemu.api import overrides_of
from dlemu.config import load
from dlemu.jobs.training.result import Run
from dlemu.ranks import Interrupted
from dlemu.results.live import Progress
from dlemu.runner.events import DatasetMade, Event, JobBegan
from dlemu.runner.ranks import RunUserError
from dlemu.studies.size import find_size
from tests.e2e.conftest import dataset as dataset
from tests.e2e.harness import LONG, PYTORCH, assert_gone, rank_of, small_run, until

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def test_what_is_exported_is_there() -> None:
    assert dlemu.__all__ == sorted(dlemu.__all__)
    assert all(callable(getattr(dlemu, name)) for name in dlemu.__all__)
    assert set(dlemu.__all__) <= set(dir(dlemu))
    with pytest.raises(AttributeError, match="no attribute 'tran'"):
        dlemu.tran  # noqa: B018


def test_importing_it_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import dlemu; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in ran.stdout.split()} - sys.stdlib_module_names == {"dlemu"}
    assert "dlemu.api" not in ran.stdout.split()


def test_settings_by_key_by_word_and_by_keyword_are_one() -> None:
    words = ["workload=unet3d", "accelerator=h100", "ranks=4", "dataset.data_folder=/a b/c", "reader.odirect=true"]
    words[3] = "dataset.data_folder='/a b/c'"
    by_key = {"workload": "unet3d", "accelerator": "h100", "dataset": {"data_folder": Path("/a b/c")}}
    by_keyword = {"ranks": np.int64(4), "reader.odirect": True, "train.total_training_steps": None}
    assert (
        load(overrides_of(by_key, by_keyword)) == load(words) == load(overrides_of(words[:2], {"ranks": 4}) + words[3:])
    )
    swept = overrides_of({}, {"ranks": [1, 2], "drives": ("/a", "/b c"), "train.epochs": range(1, 3)}, several=True)
    assert swept == ["ranks=1,2", "drives=/a,'/b c'", "train.epochs=1,2"]


def test_wrong_settings_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dlemu.UserError, match=r"did you mean reader\.batch_size"):
        dlemu.train({"reader.batchsize": 4})
    with pytest.raises(dlemu.UserError, match=r"wanted a list of overrides, as in \['ranks=4'\]"):
        dlemu.train("ranks=4")
    with pytest.raises(dlemu.UserError, match="a Workload was given where settings are wanted"):
        dlemu.train(load([]), ranks=4)
    with pytest.raises(dlemu.UserError, match=r"call dlemu\.datagen"):
        dlemu.train({"workflow.train": False, "workflow.generate_data": True})
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(dlemu.UserError, match="under the launcher"):
        dlemu.train(ranks=2)


@pytest.mark.parametrize(
    "call", [dlemu.train, dlemu.checkpoint, dlemu.datagen, dlemu.predict, dlemu.probe, dlemu.size, dlemu.sweep]
)
def test_a_call_in_a_thread_is_refused(call: Callable[..., object], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        settings = {"workload": "unet3d", "dataset.data_folder": str(tmp_path)}
        called = pool.submit(call, str(tmp_path) if call is dlemu.probe else settings)
        with pytest.raises(dlemu.UserError, match="wanted a call in the main thread"):
            called.result()


def test_ctrl_c_in_a_search_is_a_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_size, "size", Mock(side_effect=Interrupted(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt, match="interrupted by SIGINT"):
        dlemu.size()


@pytest.mark.slow
def test_the_page_s_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    ran = subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "56 files" in ran.stdout
    assert re.search(r"^AU \d+\.\d %: ", ran.stdout, re.MULTILINE)
    assert "epoch 2/2, step 4/4" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.slow
def test_a_run_in_a_program_with_threads_and_an_event_loop(
    dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook."""
    events: list[Event] = []
    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    beside.start()

    async def cell() -> Run:
        return dlemu.train(small_run(tmp_path / "run", dataset, PYTORCH), on_progress=events.append)

    mine = psutil.Process().children()
    run = asyncio.run(cell())
    done.set()
    beside.join()
    assert run.summary.complete
    assert run.summary.au is not None
    assert run.steps.num_rows == len(run.rows) == 3 * 2 * 8
    assert isinstance(events[0], JobBegan)
    last = [event for event in events if isinstance(event, Progress)][-1]
    assert (last.at, last.done, last.total) == ("epoch 2/2, step 8/8", 16, 16)
    assert psutil.Process().children() == mine
    assert capfd.readouterr() == ("", "")
    loaded = dlemu.load_result(tmp_path / "run")
    assert isinstance(loaded, Run)
    assert loaded.summary == run.summary
    assert dlemu.compare(run, tmp_path / "run").runs[0].b.ranks == 3
    assert (tmp_path / "run" / "log.txt").read_text().startswith("$ dlemu.train(...)\n")


@pytest.mark.slow
def test_a_dataset_that_is_made_and_made_again(tmp_path: Path) -> None:
    workload = load(small_run(tmp_path, tmp_path / "data"))
    with pytest.raises(dlemu.UserError, match="make=True for --make"):
        dlemu.train(workload)
    assert list(tmp_path.iterdir()) == [], "what is wrong with the dataset is the user's to mend"
    events: list[Event] = []
    made = dlemu.datagen(workload, on_progress=events.append)
    assert events[-1] == made
    assert (made.files, made.kept_files) == (48, 0)
    assert made.bytes > 48 * 10_000
    again = dlemu.datagen(workload)
    assert isinstance(again, DatasetMade)
    assert (again.files, again.kept_files) == (0, 48)


@pytest.mark.slow
def test_a_failed_run_says_what_was_kept(dataset: Path, tmp_path: Path) -> None:
    killed: list[psutil.Process] = []

    def kill_a_rank(event: Event) -> None:
        if isinstance(event, Progress) and event.done > 8 and not killed:  # steps are told after its end, too
            killed.append(rank_of(os.getpid(), 1))
            killed[0].kill()

    with pytest.raises(dlemu.RunFailedError, match=r"rank 1 .* was killed by SIGKILL") as failed:
        dlemu.train(small_run(tmp_path / "run", dataset, *LONG), on_progress=kill_a_rank)
    assert not isinstance(failed.value, RunUserError)
    kept = failed.value.kept
    assert kept is not None
    run = dlemu.load_result(kept.folder)
    assert isinstance(run, Run)
    assert run.summary.complete is False
    assert f"{len(run.rows):,} steps measured" in kept.sentence


@pytest.mark.slow
def test_an_exception_of_the_caller_s_ends_the_run_in_order(dataset: Path, tmp_path: Path) -> None:
    others = psutil.Process().children()

    def fail(event: Event) -> None:
        if isinstance(event, Progress) and event.done > 8:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as failed:
        dlemu.train(small_run(tmp_path / "run", dataset, *LONG), on_progress=fail)
    assert f"incomplete, in {tmp_path / 'run'}" in failed.value.__notes__[0]
    assert psutil.Process().children() == others


SCRIPT = """
import sys, dlemu
def show(event):
    if getattr(event, "done", 0) > 8:
        print("step", flush=True)
dlemu.train(sys.argv[1:], on_progress=show)
"""


@pytest.mark.slow
def test_an_interrupted_script_leaves_no_process_behind(dataset: Path, tmp_path: Path) -> None:
    words = small_run(tmp_path / "run", dataset, *LONG, PYTORCH)
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "step\n"
    everyone = psutil.Process(script.pid).children(recursive=True)
    assert len(everyone) >= 4
    script.send_signal(signal.SIGINT)
    _, err = script.communicate(timeout=120)
    assert_gone(everyone)
    assert "KeyboardInterrupt" in err
    assert f"kept, marked incomplete, in {tmp_path / 'run'}" in err
    run = dlemu.load_result(tmp_path / "run")
    assert isinstance(run, Run)
    assert run.summary.complete is False


@pytest.mark.slow
def test_a_slow_caller_does_not_hold_up_the_accelerators(dataset: Path, tmp_path: Path) -> None:
    """The run goes on to its end while the caller is busy with its first step."""
    seen: list[Progress] = []

    def busy(event: Event) -> None:
        if isinstance(event, Progress):
            seen.append(event)
            until((tmp_path / "run" / "summary.json").exists, "the run's end")

    run = dlemu.train(small_run(tmp_path / "run", dataset), on_progress=busy)
    assert run.summary.complete
    assert seen[0].at.startswith("epoch 1/")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A result could not state it."""
    folder = tmp_path / "\udce4"
    folder.mkdir()
    with pytest.raises(dlemu.UserError, match="not valid utf-8"):
        dlemu.probe(folder)
    with pytest.raises(dlemu.UserError, match="not valid utf-8"):
        dlemu.train(workload="unet3d", dataset={"data_folder": str(folder)})
