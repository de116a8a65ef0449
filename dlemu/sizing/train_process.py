"""A process of its own, such as a `dlemu train`: started, watched, ended in order, and its failure explained."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from datagen.errors import DlemuError, UserError
from datagen.owned import create_claimed
from dlemu.comm import Interrupted, die_with_parent
from dlemu.metrics.verdict import COMPLETED

LOG = "console.txt"
LOOK_SECONDS = 1.0
_SIGNAL_SECONDS = 0.2
_ENDING_SECONDS = 30.0
_STOPS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE_LINES = 12


def run_train(
    words: Sequence[str],
    folder: str,
    look: Callable[[], None],
    launcher: Sequence[str] = (),
    command_name: Literal["train", "checkpoint"] = "train",
) -> None:
    """Run `dlemu train WORDS` to its end, passed or not, its results in `folder`; the rest is as of `run_command`."""
    command = [*launcher, sys.executable, "-m", "dlemu", command_name, *words, f"output.folder={folder}"]
    # Status 1 is also that of an interpreter which could not even begin.
    run_command(command, folder, look, "summary.json", done=COMPLETED)


def run_command(
    command: Sequence[str],
    folder: str,
    look: Callable[[], None],
    result: str,
    *,
    done: Sequence[int] = (0,),
    asked: bytes = b"",
) -> None:
    """Run a command of dlemu's that leaves the file `result` in its folder; call `look` about once a second meanwhile.

    It reads `asked` from its standard input. Returns when it ended with a status of `done`; its output goes to LOG in
    its folder. Raises UserError or DlemuError with the command's own message. A signal to stop this process (it reaches
    the main thread alone) stops the command too, and what the process's own handler raises is raised: nothing is left
    behind.
    """
    log_path = os.path.join(folder, LOG)
    parent = os.getpid()
    with _signals_held() as release:
        with open(create_claimed(folder, LOG), "w") as out, os.fdopen(os.memfd_create("asked"), "w+b") as asks:
            asks.write(asked)
            asks.seek(0)
            process = subprocess.Popen(
                command,
                stdin=asks,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )
        try:
            while _running(process, release):
                look()
        finally:
            _end(process)
    if process.returncode not in done or not os.path.exists(os.path.join(folder, result)):
        _explain(process.returncode, log_path)


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


def _running(process: subprocess.Popen[bytes], release: Callable[[], None]) -> bool:
    """Wait until it is time to look again; return whether the run still goes on."""
    looks_at = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < looks_at:
        release()
        try:
            process.wait(_SIGNAL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run that still goes on: first as Ctrl-C does, then for good."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _ENDING_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _explain(status: int, log_path: str) -> None:
    message = _failure_message(log_path)
    if status == UserError.exit_status:
        raise UserError(message)
    ended = f"a run was ended by {signal.Signals(-status).name}" if status < 0 else f"a run ended with status {status}"
    said = f"it said:\n{message}\nall it said is in {log_path}" if message else "it had said nothing"
    raise DlemuError(f"{ended}; {said}")


def _failure_message(log_path: str) -> str:
    """Return the run's output from its first message on, the cause; or its last lines."""
    with open(log_path, errors="replace") as log:
        lines = log.read().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("dlemu: ")]
    shown = lines[starts[0] :][:_MESSAGE_LINES] if starts else lines[-_MESSAGE_LINES:]
    return "\n".join(shown).removeprefix("dlemu: ")
