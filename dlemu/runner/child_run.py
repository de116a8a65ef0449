"""Runs other programs as child processes: starts them, watches them, ends them and reports their failures.

`run_commands` runs dlemu's own commands concurrently, each with its result in a folder; `run_attached` runs a
user's command on this terminal; `output_of` returns the output of a short command.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from datagen.errors import DlemuError, UserError
from datagen.owned import create_claimed
from dlemu.config.overrides import override
from dlemu.metrics.verdict import COMPLETED
from dlemu.ranks import Interrupted, die_with_parent, first_failure
from dlemu.ranks.failure import INTERRUPTED, RANK, Role, killed_by, overdue
from dlemu.ranks.launch import run_ranks
from dlemu.results import SUMMARY
from dlemu.runner.ranks import OnTick

LOG = "console.txt"
_SAVING_SECONDS = 30.0  # how long a run may take to save after Ctrl-C before it is killed
_KILLING_SECONDS = 10.0  # how long a killed process may take to end: far more than it needs, unless storage hangs
_MESSAGE_LINES = 12  # lines of a command's output to show: enough for dlemu's longest message or a traceback's end
_RUN = Role("run", RANK.remedy)


def run_train(
    overrides: Sequence[str], folder: str, on_tick: OnTick, launcher: Sequence[str] = (), command: str = "train"
) -> None:
    """Run one job to its end, with results in `folder`; raises what `run_commands` raises."""
    run_commands([job(overrides, folder, launcher, command)], on_tick)


def job(overrides: Sequence[str], folder: str, launcher: Sequence[str] = (), command: str = "train") -> Command:
    """Return the command that runs a job; it succeeds whatever the job's verdict is."""
    words = [*launcher, *dlemu_command(command, *overrides, override(("output", "folder"), folder))]
    # Status 1 means a failed verdict, or an interpreter that could not start: so the result file must exist, too.
    return Command(words=words, folder=folder, result=SUMMARY, done=COMPLETED)


def dlemu_command(*words: str) -> list[str]:
    """Return the command that runs `dlemu` with the arguments `words`."""
    # `python -m` would import from the current folder first, where the user may have a yaml.py. `-P` prevents that. It
    # is left out if this process itself imports from the current folder.
    imports_from_here = os.getcwd() in map(os.path.abspath, sys.path)
    return [sys.executable, *([] if imports_from_here else ["-P"]), "-m", "dlemu", *words]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A dlemu command that writes the file `result` into `folder`; what it prints goes into the file LOG there."""

    words: Sequence[str]
    folder: str
    result: str
    done: Sequence[int] = (0,)
    """Exit statuses that mean success; equal in all commands that run concurrently."""

    @property
    def log(self) -> str:
        return os.path.join(self.folder, LOG)


def run_commands(commands: Sequence[Command], on_tick: OnTick = lambda: None) -> None:
    """Run commands concurrently, and call `on_tick` every half second until all have ended.

    The first failure ends the other commands, and is raised as UserError or DlemuError with its command's message. A
    signal to this process ends the commands, and then calls this process's own handler, which may raise.
    """
    for command in commands:
        os.close(create_claimed(command.folder, LOG))
    ends = run_ranks(
        len(commands),
        lambda comm: _execute(commands[comm.rank]),
        role=_RUN,
        timeout_seconds=math.inf,
        grace_seconds=_SAVING_SECONDS,
        success_statuses=commands[0].done,
        on_tick=on_tick,
    )
    failure = first_failure(ends)
    if failure is None:
        for command, end in zip(commands, ends, strict=True):
            if not os.path.exists(os.path.join(command.folder, command.result)):
                _raise_failure(f"run {end.rank} left no {command.result}", command.log)
    elif failure.kind == INTERRUPTED:
        signal.raise_signal(failure.status - 128)
        raise Interrupted(failure.status - 128)
    elif failure.status == UserError.exit_status:
        raise UserError(_failure_message(commands[failure.rank].log))
    else:
        _raise_failure(failure.message, commands[failure.rank].log)


def _execute(command: Command) -> NoReturn:
    """Replace this forked process by a command, in a session of its own and without input."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(command.log, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execvp(command.words[0], [*command.words])


def run_attached(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a user's command on this terminal with more environment variables, and return its exit status.

    Signals do not end this process: Ctrl-C reaches the command directly from the terminal, other signals are forwarded.
    The status is -N if signal N ended the command, and -SIGINT if it failed after Ctrl-C. Raises UserError if the
    command can't be started.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
                stack.callback(signal.signal, number, signal.signal(number, forward))
        try:
            process = _start(command, env={**os.environ, **environment})
        except OSError as error:
            raise UserError(
                f"{command[0]} can't be started ({error.strerror}): wanted a command and its arguments"
            ) from None
        for early_signal in [*received]:  # it arrived before the command was started
            process.send_signal(early_signal)
        status = process.wait()
    return -signal.SIGINT if status and signal.SIGINT in received else status


@dataclass(frozen=True)
class Ended:
    """How a short command ended, and what it printed."""

    status: int  # exit status; -N if signal N ended the command
    how: str  # the end as a phrase for messages, such as `fio ended with status 1`
    out: str
    err: str


class OverdueError(DlemuError):
    """A command took longer than its time limit."""


def output_of(
    command: Sequence[str], seconds: float, role: Role | None = None, *, pass_fds: Sequence[int] = ()
) -> Ended:
    """Run a command in a session of its own, without input, for at most `seconds`, and return its output.

    On return, the command and its children have ended. `role` names it in messages. Raises OSError, OverdueError.
    """
    parent = os.getpid()
    role = role or Role(command[0], "")
    process = _start(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent),
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise OverdueError(overdue(role.name, process.pid, seconds)) from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # give up on a process that hangs in the kernel
            process.wait(_KILLING_SECONDS)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    status = process.returncode
    if status < 0:
        how = killed_by(role.name, process.pid, -status, role.remedy)
    else:
        how = f"{role.name} ended with status {status}"
    return Ended(status, how, out.decode(errors="replace"), err.decode(errors="replace"))


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:  # tests replace it
    return subprocess.Popen(command, **options)


def _raise_failure(how: str, log_path: str) -> NoReturn:
    message = _failure_message(log_path)
    output = f"it printed:\n{message}\nall its output is in {log_path}" if message else "it had printed nothing"
    raise DlemuError(f"{how}; {output}")


def _failure_message(log_path: str) -> str:
    """Return the log's lines from the first "dlemu: " on, which names the cause; without one, the log's last lines."""
    with open(log_path, errors="replace") as log:
        lines = log.read().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("dlemu: "):
            return "\n".join(lines[number : number + _MESSAGE_LINES]).removeprefix("dlemu: ")
    return "\n".join(lines[-_MESSAGE_LINES:])
