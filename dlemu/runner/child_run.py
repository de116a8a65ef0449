"""A process of its own, such as a `dlemu train`: started, watched, ended in order, and its failure explained."""

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
LOOK_SECONDS = 1.0  # for progress; an end is seen sooner
_SIGNAL_SECONDS = 0.2  # how late Ctrl-C is answered: signals are held back while a run is watched
_ENDING_SECONDS = 30.0  # after Ctrl-C a run saves what it measured; one that hangs is then killed
_KILLING_SECONDS = 10.0  # far more than the kernel takes, where no storage hangs
_BESIDE_NICE = 5
"""As the recorder of a host has."""
_STOPS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE_LINES = 12  # dlemu's longest messages; of a foreign traceback its end
_RUN = Role("a run", RANK.remedy)


@dataclass(frozen=True)
class Ended:
    """How a short command ended, and what it printed."""

    status: int
    """Its exit status; minus the signal that ended it."""
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
    """Run `dlemu train WORDS` to its end, passed or not, its results in `folder`; the rest is as of `run_commands`."""
    run_commands([job(words, folder, launcher, command_name)], look)


def job(words: Sequence[str], folder: str, launcher: Sequence[str] = (), command_name: str = "train") -> Command:
    """Return the command of a job whose results go to `folder`; it may pass or not."""
    command = [*launcher, sys.executable, "-m", "dlemu", command_name, *words, f"output.folder={folder}"]
    # Status 1 is also that of an interpreter which could not even begin.
    return Command(words=command, folder=folder, result="summary.json", done=COMPLETED)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of dlemu's that leaves the file `result` in its folder, and its output in LOG there."""

    words: Sequence[str]
    folder: str
    result: str
    done: Sequence[int] = (0,)
    """Statuses with which it has done what it should."""
    asked: bytes = b""
    """What it reads from its standard input."""


def run_command(
    command: Sequence[str],
    folder: str,
    look: Callable[[], None],
    result: str,
    *,
    done: Sequence[int] = (0,),
    asked: bytes = b"",
) -> None:
    """Run one command as `run_commands` does."""
    run_commands([Command(words=command, folder=folder, result=result, done=done, asked=asked)], look)


def run_commands(commands: Sequence[Command], look: Callable[[], None]) -> None:
    """Run commands side by side; call `look` about once a second meanwhile.

    Returns when each has ended with a status of its `done`. The first that fails ends the others, and raises UserError
    or DlemuError with its own message. A signal to stop this process (it reaches the main thread alone) stops the
    commands too, and what the process's own handler raises is raised: nothing is left behind.
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
    """Say whether a command has ended without having done what it should."""
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
    """Hold signals to stop, and yield what hands the first one to the process's own handler, which raises.

    A handler that raised wherever it came could leave Popen's lock taken, and waiting for the run would never end.
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
    """Wait until it is time to look again, or one has ended; return whether any goes on."""
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
    """End a run that still goes on: first as Ctrl-C does, then for good."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _ENDING_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and whoever is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel does not hold this one
        process.wait(_KILLING_SECONDS)


@contextlib.contextmanager
def beside(command: Sequence[str]) -> Iterator[None]:
    """Have a command run, silently and with low priority, while the body does; it is ended in order at the end.

    Nothing depends on it: whether it can be started, and how it ends, makes no difference.
    """
    parent = os.getpid()

    def set_up() -> None:
        die_with_parent(parent, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell that starts jobs in the background ignores it for them
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
    """Run somebody's command on this terminal to its end, with variables of the environment added.

    Ctrl-C reaches it as if it had been started by itself, and SIGTERM is passed on: neither ends this process. Returns
    its exit status, minus the signal that ended it, also where it made another failure of Ctrl-C; raises UserError
    where it can't be started.
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
    """Leave SIGINT to the processes of the terminal, and pass SIGTERM on to those that are put into the list.

    The set has the signals that came.
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
    """A command that took longer than it may."""


def output_of(command: Sequence[str], seconds: float, role: Role, *, pass_fds: Sequence[int] = ()) -> Ended:
    """Run a command that prints and ends within some seconds; neither it nor what it starts outlives the call.

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
    """Return how a process ended that said no more of it."""
    status = process.returncode
    if status is None or status >= 0:
        return f"{role.name} ended with status {status}"
    return killed_by(role.name, process.pid, -status, role.remedy)


def _explain(process: subprocess.Popen[bytes], log_path: str) -> None:
    message = _failure_message(log_path)
    if process.returncode == UserError.exit_status:
        raise UserError(message)
    said = f"it printed:\n{message}\nall its output is in {log_path}" if message else "it had printed nothing"
    raise DlemuError(f"{how_ended(_RUN, process)}; {said}")


def _failure_message(log_path: str) -> str:
    """Return the run's output from its first message on, the cause; or its last lines."""
    with open(log_path, errors="replace") as log:
        lines = log.read().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("dlemu: ")]
    shown = lines[starts[0] :][:_MESSAGE_LINES] if starts else lines[-_MESSAGE_LINES:]
    return "\n".join(shown).removeprefix("dlemu: ")
