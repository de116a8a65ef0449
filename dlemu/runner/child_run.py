"""Child processes such as a `dlemu train`: started, watched, shut down in order, and their failures explained."""

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

from datagen.errors import DlemuError, UserError
from datagen.owned import create_claimed
from dlemu.comm import Interrupted, die_with_parent
from dlemu.comm.failure import RANK, Role, killed_by, overdue
from dlemu.metrics.verdict import COMPLETED

LOG = "console.txt"
LOOK_SECONDS = 1.0  # interval of `look`; the end of a process is seen sooner
_SIGNAL_SECONDS = 0.2  # largest delay of Ctrl-C: signals are held back while a run is watched
_ENDING_SECONDS = 30.0  # time for a run to save after Ctrl-C, before it is killed
_KILLING_SECONDS = 10.0  # far more than the kernel needs, unless storage hangs
_BESIDE_NICE = 5
"""Niceness, the same as that of the telemetry recorder."""
_STOPS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE_LINES = 12  # as long as dlemu's longest messages; of a traceback, its end
_RUN = Role("a run", RANK.remedy)


@dataclass(frozen=True)
class Ended:
    """How a short command ended, and what it printed."""

    status: int
    """Exit status; -N if signal N ended it."""
    how: str
    """The same as a phrase."""
    out: str
    err: str


def run_train(
    words: Sequence[str],
    folder: str,
    look: Callable[[], None],
    launcher: Sequence[str] = (),
    command_name: str = "train",
) -> None:
    """Run a job to its end (its verdict may be fail), with results in `folder`; see `job` and `run_commands`."""
    run_commands([job(words, folder, launcher, command_name)], look)


def job(words: Sequence[str], folder: str, launcher: Sequence[str] = (), command_name: str = "train") -> Command:
    """Return the command of a job with overrides `words`, results in `folder`; pass and fail both count as done."""
    command = [*launcher, sys.executable, "-m", "dlemu", command_name, *words, f"output.folder={folder}"]
    # Status 1 (fail) is also that of an interpreter that could not start, so the result file must exist, too.
    return Command(words=command, folder=folder, result="summary.json", done=COMPLETED)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A dlemu command that writes the file `result` into its folder, and its output to the file LOG there."""

    words: Sequence[str]
    folder: str
    result: str
    done: Sequence[int] = (0,)
    """Exit statuses that mean success."""
    asked: bytes = b""
    """Content of its standard input."""


def run_command(
    command: Sequence[str],
    folder: str,
    look: Callable[[], None],
    result: str,
    *,
    done: Sequence[int] = (0,),
    asked: bytes = b"",
) -> None:
    """Run one command; see `run_commands`."""
    run_commands([Command(words=command, folder=folder, result=result, done=done, asked=asked)], look)


def run_commands(commands: Sequence[Command], look: Callable[[], None]) -> None:
    """Run commands concurrently; call `look` about once a second meanwhile.

    Returns when each has ended with a status in `done`. The first failure ends the others, and raises UserError or
    DlemuError with that command's message. SIGINT or SIGTERM to this process (only its main thread gets them) ends the
    commands, and what the process's own handler raises is raised here.
    """
    started: list[subprocess.Popen[bytes]] = []
    with _signals_held() as release:
        try:
            for command in commands:
                started.append(_start(command))
            while _running(started, release) and not any(map(_failed, commands, started)):
                look()
        finally:
            for process in started:
                _end(process)
    for command, process in zip(commands, started, strict=True):
        if _failed(command, process):
            _explain(process, os.path.join(command.folder, LOG))


def _failed(command: Command, process: subprocess.Popen[bytes]) -> bool:
    """Return whether a command has ended with another status than those in `done`, or without its result."""
    if process.poll() is None:
        return False
    return process.returncode not in command.done or not os.path.exists(os.path.join(command.folder, command.result))


def _start(command: Command) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    with open(create_claimed(command.folder, LOG), "w") as out, os.fdopen(os.memfd_create("asked"), "w+b") as asks:
        asks.write(command.asked)
        asks.seek(0)
        return subprocess.Popen(
            command.words,
            stdin=asks,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )


@contextlib.contextmanager
def _signals_held() -> Iterator[Callable[[], None]]:
    """Hold back SIGINT and SIGTERM; yield a function that passes the first to the process's handler, which raises.

    A handler that raises at any point could leave Popen's lock taken, and waiting for the run would never end.
    """
    held: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in _STOPS}

    def release() -> None:
        if held:
            handler = before[signal.Signals(held[0])]
            if callable(handler):
                handler(held[0], None)
            raise Interrupted(held[0])

    try:
        yield release
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    release()


def _running(processes: Sequence[subprocess.Popen[bytes]], release: Callable[[], None]) -> bool:
    """Wait until the next `look` is due or a process has ended; return whether any is still running."""
    looks_at = time.monotonic() + LOOK_SECONDS
    alive = [process for process in processes if process.poll() is None]
    while alive and time.monotonic() < looks_at:
        release()
        with contextlib.suppress(subprocess.TimeoutExpired):
            alive[0].wait(_SIGNAL_SECONDS)
        if any(process.poll() is not None for process in alive):
            break
    return any(process.poll() is None for process in processes)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run that is still going on: by SIGINT, so that it saves; by SIGKILL if that takes too long."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _ENDING_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and all other processes in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # don't wait for one that hangs in the kernel
        process.wait(_KILLING_SECONDS)


@contextlib.contextmanager
def beside(command: Sequence[str]) -> Iterator[None]:
    """Run a command in the background, without output and at low priority, until the body of the `with` block ends.

    It is optional: failures to start it, and its exit status, are ignored.
    """
    parent = os.getpid()

    def set_up() -> None:
        die_with_parent(parent, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell inherit it ignored
        os.nice(_BESIDE_NICE)

    with contextlib.ExitStack() as ended:
        with contextlib.suppress(OSError):
            null = subprocess.DEVNULL
            process = subprocess.Popen(
                command, stdin=null, stdout=null, stderr=null, start_new_session=True, preexec_fn=set_up
            )
            ended.callback(_end, process)
        yield


def run_attached(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a user's command on this terminal to its end, with environment variables added.

    The terminal's Ctrl-C reaches it directly, and SIGTERM is passed on; neither ends this process. Returns its exit
    status, -N if signal N ended it, also if it turned Ctrl-C into another failure. Raises UserError where it can't be
    started.
    """
    with _passed_on() as (passes_to, got):
        try:
            process = subprocess.Popen(command, env={**os.environ, **environment})
        except OSError as error:
            raise UserError(
                f"{command[0]} can't be started ({error.strerror}): wanted a command and its arguments"
            ) from None
        passes_to.append(process)
        status = process.wait()
        return -signal.SIGINT if status and signal.SIGINT in got else status


@contextlib.contextmanager
def _passed_on() -> Iterator[tuple[list[subprocess.Popen[bytes]], set[int]]]:
    """Ignore SIGINT, which the terminal sends to its processes itself; pass SIGTERM on to the processes in the list.

    The set collects the signals received.
    """
    processes: list[subprocess.Popen[bytes]] = []
    got: set[int] = set()

    def handle(number: int, _: object) -> None:
        got.add(number)
        for process in processes:
            if number == signal.SIGTERM:
                process.terminate()

    before = {number: signal.signal(number, handle) for number in _STOPS}
    try:
        yield processes, got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class OverdueError(DlemuError):
    """A command that took longer than its limit."""


def output_of(command: Sequence[str], seconds: float, role: Role, *, pass_fds: Sequence[int] = ()) -> Ended:
    """Run a short command and return its output; neither it nor its children outlive the call.

    Raises OSError when it can't be started, OverdueError when it takes longer.
    """
    parent = os.getpid()
    process = subprocess.Popen(
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
        end_group(process)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
    return Ended(
        process.returncode, how_ended(role, process), out.decode(errors="replace"), err.decode(errors="replace")
    )


def how_ended(role: Role, process: subprocess.Popen[bytes]) -> str:
    """Return a sentence on how a process ended, by its exit status."""
    status = process.returncode
    if status is None or status >= 0:
        return f"{role.name} ended with status {status}"
    return killed_by(role.name, process.pid, -status, role.remedy)


def _explain(process: subprocess.Popen[bytes], log_path: str) -> None:
    message = _failure_message(log_path)
    if process.returncode == UserError.exit_status:
        raise UserError(message)
    output = f"it printed:\n{message}\nall its output is in {log_path}" if message else "it had printed nothing"
    raise DlemuError(f"{how_ended(_RUN, process)}; {output}")


def _failure_message(log_path: str) -> str:
    """Return the run's output from its first "dlemu: " line on, which is the cause; without one, its last lines."""
    with open(log_path, errors="replace") as log:
        lines = log.read().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("dlemu: ")]
    shown = lines[starts[0] :][:_MESSAGE_LINES] if starts else lines[-_MESSAGE_LINES:]
    return "\n".join(shown).removeprefix("dlemu: ")
