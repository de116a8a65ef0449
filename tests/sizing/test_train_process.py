"""A run of another process ends as a result or as an explanation, never as silence."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DlemuError, UserError
from dlemu.config import load
from dlemu.ranks import Interrupted, interrupt_on
from dlemu.runner import child_run
from dlemu.runner.child_run import LOG, job, run_attached, run_train


def run(folder: Path, script: str) -> None:
    """Run a shell script in the place of `dlemu train`."""
    run_train([], str(folder), lambda: None, launcher=["sh", "-c", script, sys.executable])


def test_a_run_that_leaves_its_summary_has_completed(tmp_path: Path) -> None:
    run(tmp_path, f"echo all is well; touch {tmp_path}/summary.json; exit 1")
    assert (tmp_path / LOG).read_text() == "all is well\n"


def test_a_mistake_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^no such dataset$"):
        run(tmp_path, "echo 'dlemu: no such dataset' >&2; exit 2")


def test_the_cause_is_told_and_not_only_the_last_word(tmp_path: Path) -> None:
    script = "echo 'dlemu: rank 3 was killed' >&2; echo 'dlemu: 450 steps are kept' >&2; exit 3"
    with pytest.raises(DlemuError, match=r"status 3; it printed:\nrank 3 was killed\ndlemu: 450 steps are kept"):
        run(tmp_path, script)


@pytest.mark.parametrize("folder", ["/a=b, c", "/it's", "/x[1]{2}", "/\u00e4(1),/b", "12", "null", "-x y"])
def test_a_run_gets_its_folder_whatever_its_name(folder: str) -> None:
    assert load([job([], folder).words[-1]]).output.folder == folder


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo Traceback; exit 1", "left no summary.json; it printed:\nTraceback"),
        ("echo begun; kill -9 $$", "was killed by SIGKILL; .*; it printed:\nbegun"),
        ("kill -9 $$", "was killed by SIGKILL; .*; it had printed nothing"),
    ],
)
def test_an_end_without_a_result_is_a_failure(tmp_path: Path, script: str, ended: str) -> None:
    with pytest.raises(DlemuError, match=ended):
        run(tmp_path, script)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_being_told_to_stop_lets_the_run_save_and_then_stops(number: signal.Signals, tmp_path: Path) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a `nohup` before the tests may have handed down another
    interrupt_on(signal.SIGTERM, signal.SIGINT)
    script = f"trap 'touch {tmp_path}/saved; exit 143' TERM; kill -{number.name[3:]} $PPID; sleep 60 & wait"
    try:
        with pytest.raises(Interrupted) as stopped:
            run(tmp_path, script)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert stopped.value.signal_number == number
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_a_users_command_starts_reaches_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = child_run._start

    def signalled(command: list[str], **options: Any) -> Any:
        signal.raise_signal(number)
        return start(command, **options)

    monkeypatch.setattr(child_run, "_start", signalled)
    assert run_attached(["sleep", "20"], {}) == -number
