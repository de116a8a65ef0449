"""A `dlemu train` process of its own: started, watched, ended in order, and its failure told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from datagen.errors import DlemuError, UserError
from dlemu.comm.process import die_with_parent

LOOK_SECONDS = 1.0
_ENDING_SECONDS = 30.0
_DONE = (0, 1)
_MESSAGE_LINES = 12


def run_train(words: Sequence[str], log_path: str, look: Callable[[], None], launcher: Sequence[str] = ()) -> None:
    """Run `dlemu train WORDS` to its end and call `look` about once a second meanwhile.

    Returns when the run completed, passed or not. Raises UserError or DlemuError with what the run said. When this
    process is told to stop, so is the run: nothing is left behind.
    """
    command = [*launcher, sys.executable, "-m", "dlemu", "train", *words]
    parent = os.getpid()
    with open(log_path, "w") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )
    try:
        while _running(process):
            look()
    finally:
        _end(process)
    if process.returncode not in _DONE:
        _explain(process.returncode, log_path)


def _running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


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
    said = _last_words(log_path)
    if status == UserError.exit_status:
        raise UserError(said)
    ended = f"by signal {-status}" if status < 0 else f"with status {status}"
    raise DlemuError(f"a run ended {ended}; it said:\n{said}\nall it said is in {log_path}")


def _last_words(log_path: str) -> str:
    """Return what the run said of its failure: from its last message on, or its last lines."""
    with open(log_path, errors="replace") as told:
        lines = told.read().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("dlemu: ")]
    last = lines[starts[-1] :] if starts else lines
    return "\n".join(last[-_MESSAGE_LINES:]).removeprefix("dlemu: ")
