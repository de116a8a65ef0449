"""What a command costs before it does anything, and how it ends: one message, a status for each kind of end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.__main__ import main
from dlemu.cli import commands, guarded
from dlemu.ranks import Failure, Interrupted
from dlemu.runner.ranks import failed_run
from dlemu.runner.run_list import RunsPlanned

NO_ANSWER = click.Abort()  # as click raises it at the end of the input
NO_ANSWER.__context__ = EOFError()
CRASHED = Failure(rank=1, kind="KeyError", message="rank 1: KeyError", status=3, at_ns=0, traceback="Traceback ...")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (SystemExit(1), 1, ""),
        (UserError("no such key"), 2, "dlemu: no such key\n"),
        (click.UsageError("no such option"), 2, "Error: no such option\n"),
        (DlemuError("a worker died"), 3, "dlemu: a worker died\n"),
        (MemoryError(), 2, "or use fewer ranks, workers or prefetches\n"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "/mnt/a"), 2, "see the kernel's log (dmesg) for why\n"),
        (RuntimeError("can't start new thread"), 2, "or use fewer ranks or workers\n"),
        (KeyError("nobody foresaw it"), 3, "    raise error\nKeyError: 'nobody foresaw it'\n"),  # a traceback
        (failed_run(CRASHED), 3, "dlemu: Traceback ...\ndlemu: rank 1: KeyError\n"),
        (KeyboardInterrupt(), 130, "dlemu: interrupted by Ctrl-C (SIGINT)\n"),
        (click.Abort(), 130, "dlemu: interrupted by Ctrl-C (SIGINT)\n"),
        (NO_ANSWER, 2, "answers yes to what is made; other answers are options (--help)\n"),
        (Interrupted(signal.SIGTERM), 143, "dlemu: interrupted by SIGTERM\n"),
    ],
)
def test_what_is_raised_is_told_once(
    error: BaseException, status: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["dlemu"])
    with pytest.raises(SystemExit) as ended:
        guarded(command, "dlemu")
    assert ended.value.code == status
    assert capsys.readouterr().err.endswith(text)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("report x", "dlemu.report.page.write_page"),
        ("predict workload=unet3d --mb-per-second 7", "dlemu.studies.predict.predict"),
        ("compare workload=unet3d drives=/mnt/a,/mnt/b", "dlemu.studies.sweep.run.sweep"),  # it has planned no run yet
    ],
)
def test_sigterm_ends_what_only_reads_and_writes_files_as_ctrl_c_does(
    words: str, step: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(step, lambda *arguments, **more: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr("sys.argv", ["dlemu", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert "interrupted by SIGTERM\n" in capfd.readouterr().err


def test_a_sweep_that_runs_out_of_space_says_how_to_go_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object, on_event: Callable[[RunsPlanned], None], **more: object) -> None:
        on_event(RunsPlanned(folder="results/s", runs=2, finished_runs=0, wants_page=False))
        raise SpaceError("the disk is full")

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("dlemu.studies.sweep.run.sweep", fill)
    monkeypatch.setattr("sys.argv", ["dlemu", "sweep", "workload=unet3d", "ranks=1,2"])
    with pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
    assert ended.value.code == 2
    again = "repeat the command with output.folder=results/s"
    assert f"the disk is full; finished runs are kept: once there is space, {again}" in capfd.readouterr().err


HEAVY = {"hydra", "msgspec", "numpy", "omegaconf", "psutil", "pyarrow", "rich", "torch", "yaml"}
SETTINGS = "dlemu.config.schema"
"""A quarter of what the list of commands would cost."""


def test_numpy_starts_no_threads_in_a_rank() -> None:
    code = "import os, dlemu.cli, numpy; print(len(os.listdir('/proc/self/task')))"
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 1


def test_help_imports_nothing_heavy() -> None:
    """Of dlemu, then of each command, in one process."""
    code = (
        "import sys\nfrom dlemu.cli import cli, commands\n"
        "def imported(*words):\n"
        "    cli.main([*words, '--help'], standalone_mode=False)\n"
        "    print(*words, '->', *{name.partition('.')[0] for name in sys.modules}, *sys.modules, file=sys.stderr)\n"
        "imported()\nfor name in commands(): imported(name)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *others = [line.partition("->")[2].split() for line in ran.stderr.splitlines()]
    assert len(others) == len(commands())
    assert set(first) & (HEAVY | {SETTINGS}) == set()
    assert set(others[-1]) & HEAVY == set()


def test_shells_are_offered_commands_and_options() -> None:
    def offered(words: str) -> list[str]:
        at = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_DLEMU_COMPLETE": "zsh_complete"}
        code = "import sys; sys.argv = ['dlemu']; from dlemu.cli import main; main()"
        ran = subprocess.run([sys.executable, "-c", code], env=os.environ | at, capture_output=True, text=True)
        return ran.stdout.splitlines()[1::3]

    assert offered("dlemu tr") == ["try", "train"]
    assert "--json" in offered("dlemu train --")
