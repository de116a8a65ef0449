"""A `dlemu train` process of its own: started, watched, ended in order, and its failure told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from datagen.errors import DlemuError, UserError
from dlemu.comm import Interrupted, die_with_parent

LOG = "console.txt"
LOOK_SECONDS = 1.0
_HEED_SECONDS = 0.2
_ENDING_SECONDS = 30.0
_DONE = (0, 1)
_STOPS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE_LINES = 12


def run_train(words: Sequence[str], folder: str, look: Callable[[], None], launcher: Sequence[str] = ()) -> None:
    """Run `dlemu train WORDS` to its end, its results in `folder`, and call `look` about once a second meanwhile.

    Returns when the run completed, passed or not; what it says goes to LOG in its folder. Raises UserError or
    DlemuError with what the run said. When this process is told to stop, so is the run, and what the process's own
    handler raises is raised: nothing is left behind.
    """
    command = [*launcher, sys.executable, "-m", "dlemu", "train", *words, f"output.folder={folder}"]
    log_path = os.path.join(folder, LOG)
    parent = os.getpid()
    with _stops_noted() as heed:
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
            while _running(process, heed):
                look()
        finally:
            _end(process)
    # Status 1 is also that of an interpreter which could not even begin.
    if process.returncode not in _DONE or not os.path.exists(os.path.join(folder, "summary.json")):
        _explain(process.returncode, log_path)


@contextlib.contextmanager
def _stops_noted() -> Iterator[Callable[[], None]]:
    """Note signals to stop, and yield what hands the first one to the process's own handler, which raises.

    A handler that raised wherever it came could leave Popen's lock taken, and waiting for the run would never end.
    """
    noted: list[int] = []
    before = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in _STOPS}

    def heed() -> None:
        if noted:
            handler = before[signal.Signals(noted[0])]
            if callable(handler):
                handler(noted[0], None)
            raise Interrupted(noted[0])

    try:
        yield heed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    heed()


def _running(process: subprocess.Popen[bytes], heed: Callable[[], None]) -> bool:
    """Wait until it is time to look again; return whether the run still goes on."""
    looks_at = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < looks_at:
        heed()
        try:
            process.wait(_HEED_SECONDS)
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
    said = _last_words(log_path)
    if status == UserError.exit_status:
        raise UserError(said)
    ended = f"by signal {-status}" if status < 0 else f"with status {status}"
    raise DlemuError(f"a run ended {ended}; it said:\n{said}\nall it said is in {log_path}")


def _last_words(log_path: str) -> str:
    """Return what the run said of its failure: from its first message on, the cause; or its last lines."""
    with open(log_path, errors="replace") as told:
        lines = told.read().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("dlemu: ")]
    said = lines[starts[0] :][:_MESSAGE_LINES] if starts else lines[-_MESSAGE_LINES:]
    return "\n".join(said).removeprefix("dlemu: ")
