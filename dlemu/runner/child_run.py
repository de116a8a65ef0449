"""Runs child processes: starts and watches them, ends them in order, reports their failures.

`run_commands`: dlemu's own commands, concurrently, each with a result in a folder. `run_attached`: a user's command on
this terminal. `output_of`: a short command whose output is wanted.
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
from dlemu.ranks import Comm, Interrupted, die_with_parent, first_failure
from dlemu.ranks.failure import INTERRUPTED, RANK, Role, killed_by, overdue
from dlemu.ranks.launch import run_ranks
from dlemu.results import SUMMARY
from dlemu.runner.ranks import OnLook

LOG = "console.txt"
_SAVING_SECONDS = 30.0  # time for a run to save after Ctrl-C, before it is killed
_KILLING_SECONDS = 10.0  # far more than the kernel needs, unless storage hangs
_MESSAGE_LINES = 12  # enough for dlemu's longest messages, and for the end of a traceback
_RUN = Role("run", RANK.remedy)


def run_train(
    words: Sequence[str], folder: str, look: OnLook, launcher: Sequence[str] = (), command: str = "train"
) -> None:
    """Run a job to its end, with results in `folder`; see `job` and `run_commands`."""
    run_commands([job(words, folder, launcher, command)], look)


def job(words: Sequence[str], folder: str, launcher: Sequence[str] = (), command: str = "train") -> Command:
    """Return the command of a job with overrides `words`; it succeeds whatever its verdict is."""
    # An interpreter that could not start also ends with status 1 (fail), so the result file must exist, too.
    return Command(
        words=[*launcher, *dlemu_command(command, *words, override(("output", "folder"), folder))],
        folder=folder,
        result=SUMMARY,
        done=COMPLETED,
    )


def dlemu_command(*words: str) -> list[str]:
    """Return the command that runs `dlemu` with `words`.

    `python -m` imports from the current folder first, which may have a yaml.py of the user's. `-P` prevents that,
    unless this process imports from there as well.
    """
    imports_from_here = any(os.path.abspath(entry) == os.getcwd() for entry in sys.path)
    options = [] if imports_from_here else ["-P"]
    return [sys.executable, *options, "-m", "dlemu", *words]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A dlemu command that writes the file `result` into its folder, and its output to the file LOG there."""

    words: Sequence[str]
    folder: str
    result: str
    done: Sequence[int] = (0,)
    """Exit statuses that mean success; commands that run concurrently have the same."""

    @property
    def log(self) -> str:
        return os.path.join(self.folder, LOG)


def run_commands(commands: Sequence[Command], look: OnLook = lambda: None) -> None:
    """Run commands concurrently; call `look` every half second meanwhile.

    The first that fails ends the others, and raises UserError or DlemuError with its message. A signal to this process
    ends the commands; then the process's own handler is called, and what it raises is raised here.
    """
    for command in commands:
        os.close(create_claimed(command.folder, LOG))

    def run(comm: Comm) -> NoReturn:
        """Become a command, in a session of its own, without input."""
        command = commands[comm.rank]
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(command.log, os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execvp(command.words[0], [*command.words])

    ends = run_ranks(
        len(commands),
        run,
        role=_RUN,
        timeout_seconds=math.inf,
        grace_seconds=_SAVING_SECONDS,
        done=commands[0].done,
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


def run_attached(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a user's command on this terminal, with environment variables added, and return its exit status.

    No signal ends this process: Ctrl-C on the terminal reaches the command directly, others are forwarded. The status
    is -N if signal N ended it, and -SIGINT for any failure after Ctrl-C. Raises UserError if it can't be started.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                stack.callback(signal.signal, number, signal.signal(number, handle))
        try:
            process = _start(command, env={**os.environ, **environment})
        except OSError as error:
            raise UserError(
                f"{command[0]} can't be started ({error.strerror}): wanted a command and its arguments"
            ) from None
        for early in [*received]:  # before the command was there to get them
            process.send_signal(early)
        status = process.wait()
    return -signal.SIGINT if status and signal.SIGINT in received else status


@dataclass(frozen=True)
class Ended:
    """How a short command ended, and what it printed."""

    status: int
    """Exit status; -N if signal N ended it."""
    how: str
    """The same in words."""
    out: str
    err: str


class OverdueError(DlemuError):
    """A command that took longer than its limit."""


def output_of(
    command: Sequence[str], seconds: float, role: Role | None = None, *, pass_fds: Sequence[int] = ()
) -> Ended:
    """Run a command for at most `seconds` and return its output; neither it nor its children outlive the call.

    It gets a session of its own and no input. Raises OSError, OverdueError.
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
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel is left
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


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:  # the only start of a process here
    return subprocess.Popen(command, **options)


def _raise_failure(how: str, log_path: str) -> NoReturn:
    message = _failure_message(log_path)
    output = f"it printed:\n{message}\nall its output is in {log_path}" if message else "it had printed nothing"
    raise DlemuError(f"{how}; {output}")


def _failure_message(log_path: str) -> str:
    """Return the log from its first "dlemu: " line on, which has the cause; without such a line, the last lines."""
    with open(log_path, errors="replace") as log:
        lines = log.read().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("dlemu: "):
            return "\n".join(lines[number : number + _MESSAGE_LINES]).removeprefix("dlemu: ")
    return "\n".join(lines[-_MESSAGE_LINES:])
