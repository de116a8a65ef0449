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
from dlemu.runner.ranks import OnLook

LOG = "console.txt"
_SAVING_SECONDS = 30.0  # how long a run may take to save after Ctrl-C, before it is killed
_KILLING_SECONDS = 10.0  # how long a killed process may take to end: far longer than needed, unless storage hangs
_MESSAGE_LINES = 12  # enough for dlemu's longest messages, and for the end of a traceback
_RUN = Role("run", RANK.remedy)


def run_train(
    words: Sequence[str], folder: str, look: OnLook, launcher: Sequence[str] = (), command: str = "train"
) -> None:
    """Run one job to its end, with results in `folder`; see `job` and `run_commands`."""
    run_commands([job(words, folder, launcher, command)], look)


def job(words: Sequence[str], folder: str, launcher: Sequence[str] = (), command: str = "train") -> Command:
    """Return the command of a job with overrides `words`. The command succeeds whatever the job's verdict is."""
    # Status 1 is a failed verdict, but also an interpreter that could not start: so the result file must exist, too.
    return Command(
        words=[*launcher, *dlemu_command(command, *words, override(("output", "folder"), folder))],
        folder=folder,
        result=SUMMARY,
        done=COMPLETED,
    )


def dlemu_command(*words: str) -> list[str]:
    """Return the command that runs `dlemu` with `words`.

    `python -m` would import from the current folder first, where the user may have a yaml.py. `-P` prevents that; it is
    left out if this process itself imports from there.
    """
    imports_from_here = any(os.path.abspath(entry) == os.getcwd() for entry in sys.path)
    return [sys.executable, *([] if imports_from_here else ["-P"]), "-m", "dlemu", *words]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A dlemu command that writes the file `result` into its folder; its output goes to the file LOG there."""

    words: Sequence[str]
    folder: str
    result: str
    done: Sequence[int] = (0,)
    """Exit statuses that mean success; equal in all commands that run concurrently."""

    @property
    def log(self) -> str:
        return os.path.join(self.folder, LOG)


def run_commands(commands: Sequence[Command], look: OnLook = lambda: None) -> None:
    """Run commands concurrently, and call `look` every half second until all have ended.

    The first failure ends the other commands and is raised as UserError or DlemuError with the command's message. A
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
        on_look=look,
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
    """Execute a command in place of this forked process, in a session of its own and without input."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(command.log, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execvp(command.words[0], [*command.words])


def run_attached(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a user's command on this terminal, with environment variables added, and return its exit status.

    Signals do not end this process: Ctrl-C on the terminal reaches the command directly, other signals are forwarded.
    The status is -N if signal N ended the command, and -SIGINT for any failure after Ctrl-C. Raises UserError if the
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

    status: int
    """Exit status; -N if signal N ended it."""
    how: str
    """How it ended, as a phrase for messages."""
    out: str
    err: str


class OverdueError(DlemuError):
    """A command took longer than its time limit."""


def output_of(
    command: Sequence[str], seconds: float, role: Role | None = None, *, pass_fds: Sequence[int] = ()
) -> Ended:
    """Run a command for at most `seconds` and return its output; the command and its children end with the call.

    The command runs in a session of its own, without input. Raises OSError, OverdueError.
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
