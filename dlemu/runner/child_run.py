"""Runs child processes such as `dlemu train`: starts and watches them, ends them in order, reports their failures."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, NoReturn

from datagen.errors import DlemuError, UserError
from datagen.owned import create_claimed
from dlemu.comm import Interrupted, die_with_parent
from dlemu.comm.failure import RANK, Role, killed_by, overdue
from dlemu.config.overrides import override
from dlemu.metrics.verdict import COMPLETED

LOG = "console.txt"
LOOK_SECONDS = 1.0  # interval between calls of `look`; the end of a process is noticed sooner
_SIGNAL_SECONDS = 0.2  # largest delay of Ctrl-C: signals are deferred while a run is watched
_SAVING_SECONDS = 30.0  # time for a run to save after Ctrl-C, before it is killed
_KILLING_SECONDS = 10.0  # far more than the kernel needs, unless storage hangs
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MESSAGE_LINES = 12  # enough for dlemu's longest messages, and for the end of a traceback
_RUN = Role("a run", RANK.remedy)


@dataclass(frozen=True)
class Ended:
    """How a short command ended, and what it printed."""

    status: int
    """Exit status; -N if signal N ended it."""
    how: str
    """The same in words."""
    out: str
    err: str


def run_train(
    words: Sequence[str],
    folder: str,
    look: Callable[[], None],
    launcher: Sequence[str] = (),
    command_name: str = "train",
) -> None:
    """Run a job to its end (its verdict may be `fail`), with results in `folder`; see `job` and `run_commands`."""
    run_commands([job(words, folder, launcher, command_name)], look)


def job(words: Sequence[str], folder: str, launcher: Sequence[str] = (), command_name: str = "train") -> Command:
    """Return the command of a job with overrides `words` and results in `folder`; pass and fail both are success."""
    command = [*launcher, *module_command("dlemu", command_name, *words, override(("output", "folder"), folder))]
    # An interpreter that could not start also ends with status 1 (fail), so the result file must exist, too.
    return Command(words=command, folder=folder, result="summary.json", done=COMPLETED)


def module_command(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of dlemu with `words`.

    `python -m` imports from the current folder first, which may have a yaml.py: it does so only where this process
    does.
    """
    from_here = any(os.path.abspath(entry) == os.getcwd() for entry in sys.path)
    return [sys.executable, *([] if from_here else ["-P"]), "-m", module, *words]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A dlemu command that writes the file `result` into its folder, and its output to the file LOG there."""

    words: Sequence[str]
    folder: str
    result: str
    done: Sequence[int] = (0,)
    """Exit statuses that mean success."""


def run_commands(commands: Sequence[Command], look: Callable[[], None]) -> None:
    """Run commands concurrently; call `look` about once a second meanwhile.

    The first that ends with a status not in its `done` ends the others, and raises UserError or DlemuError with its
    message. A signal to this process ends the commands; then the process's own handler is called, and what it raises is
    raised here.
    """
    started: list[subprocess.Popen[bytes]] = []
    with _signals_deferred() as release:
        try:
            for command in commands:
                with open(create_claimed(command.folder, LOG), "w") as out:
                    started.append(
                        _start(command.words, apart=True, out=out, err=subprocess.STDOUT, ends_by=signal.SIGTERM)
                    )
            while _running(started, release) and not any(map(_failed, commands, started)):
                look()
        finally:
            for process in started:
                _end(process)
    for command, process in zip(commands, started, strict=True):
        if _failed(command, process):
            _raise_failure(process, os.path.join(command.folder, LOG))


def _failed(command: Command, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is None:
        return False
    return process.returncode not in command.done or not os.path.exists(os.path.join(command.folder, command.result))


def _start(
    command: Sequence[str],
    *,
    apart: bool = False,
    out: int | IO[str] | None = None,
    err: int | None = None,
    ends_by: int = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command on this terminal, or `apart`: in a session of its own, without input, ended by `ends_by` with
    this process. Raises OSError.
    """
    parent = os.getpid()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if apart else None,
        stdout=out,
        stderr=err,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=apart,
        preexec_fn=(lambda: die_with_parent(parent, ends_by)) if apart else None,
    )


def _stop_signals() -> list[int]:
    """Return the signals that stop a command; SIGHUP is not one of them if `nohup` has it ignored."""
    return [number for number in _STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def _signals_deferred() -> Iterator[Callable[[], None]]:
    """Defer signals that stop; yield a function that passes the first to the process's own handler, which raises.

    A handler that raises at an arbitrary point could leave Popen's lock taken.
    """
    deferred: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = _stop_signals()
        before = {number: signal.signal(number, lambda number, _: deferred.append(number)) for number in numbers}

    def release() -> None:
        if deferred:
            handler = before[signal.Signals(deferred[0])]
            if callable(handler):
                handler(deferred[0], None)
            raise Interrupted(deferred[0])

    try:
        yield release
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    release()


def _running(processes: Sequence[subprocess.Popen[bytes]], release: Callable[[], None]) -> bool:
    """Wait for the next `look` or the end of a process; return whether any still runs."""
    look_due = time.monotonic() + LOOK_SECONDS
    alive = [process for process in processes if process.poll() is None]
    while alive and time.monotonic() < look_due:
        release()
        with contextlib.suppress(subprocess.TimeoutExpired):
            alive[0].wait(_SIGNAL_SECONDS)
        if any(process.poll() is not None for process in alive):
            break
    return any(process.poll() is None for process in processes)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process if it is still running: by SIGINT, so that it can save; by SIGKILL if that takes too long."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _SAVING_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and all other processes in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # don't wait for one that hangs in the kernel
        process.wait(_KILLING_SECONDS)


def run_attached(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a user's command on this terminal to its end, with environment variables added.

    No signal ends this process: Ctrl-C on the terminal reaches the command directly, others are forwarded. Returns its
    exit status; -N if signal N ended it, and -SIGINT for any failure after Ctrl-C. Raises UserError if it can't be
    started.
    """
    with _signals_forwarded() as (targets, received):
        try:
            process = _start(command, environment={**os.environ, **environment})
        except OSError as error:
            raise UserError(
                f"{command[0]} can't be started ({error.strerror}): wanted a command and its arguments"
            ) from None
        targets.append(process)
        status = process.wait()
        return -signal.SIGINT if status and signal.SIGINT in received else status


@contextlib.contextmanager
def _signals_forwarded() -> Iterator[tuple[list[subprocess.Popen[bytes]], set[int]]]:
    """Forward SIGTERM and SIGHUP to the processes in the list, SIGINT reaches them by the terminal; collect all."""
    processes: list[subprocess.Popen[bytes]] = []
    received: set[int] = set()

    def handle(number: int, _: object) -> None:
        received.add(number)
        for process in processes:
            if number != signal.SIGINT:
                process.send_signal(number)

    before = {number: signal.signal(number, handle) for number in _stop_signals()}
    try:
        yield processes, received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printed_by(command: Sequence[str]) -> tuple[int, str]:
    """Run a command on this terminal, from which it gets Ctrl-C; return its exit status and what it printed."""
    process = _start(command, out=subprocess.PIPE)
    out, _ = process.communicate()
    return process.returncode, out.decode(errors="replace")


class OverdueError(DlemuError):
    """A command that took longer than its limit."""


def output_of(command: Sequence[str], seconds: float, role: Role, *, pass_fds: Sequence[int] = ()) -> Ended:
    """Run a command for at most `seconds` and return its output; neither it nor its children outlive the call.

    Raises OSError, OverdueError.
    """
    process = _start(command, apart=True, out=subprocess.PIPE, err=subprocess.PIPE, pass_fds=pass_fds)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise OverdueError(overdue(role.name, process.pid, seconds)) from error
    finally:
        end_group(process)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
    return Ended(
        process.returncode, how_ended(role, process), out.decode(errors="replace"), err.decode(errors="replace")
    )


def how_ended(role: Role, process: subprocess.Popen[bytes]) -> str:
    status = process.returncode
    if status is None or status >= 0:
        return f"{role.name} ended with status {status}"
    return killed_by(role.name, process.pid, -status, role.remedy)


def _raise_failure(process: subprocess.Popen[bytes], log_path: str) -> NoReturn:
    message = _failure_message(log_path)
    if process.returncode == UserError.exit_status:
        raise UserError(message)
    output = f"it printed:\n{message}\nall its output is in {log_path}" if message else "it had printed nothing"
    raise DlemuError(f"{how_ended(_RUN, process)}; {output}")


def _failure_message(log_path: str) -> str:
    """Return the output from its first "dlemu: " line on, which has the cause; without one, the last lines."""
    with open(log_path, errors="replace") as log:
        lines = log.read().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("dlemu: ")]
    shown = lines[starts[0] :][:_MESSAGE_LINES] if starts else lines[-_MESSAGE_LINES:]
    return "\n".join(shown).removeprefix("dlemu: ")
