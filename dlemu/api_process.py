"""A process of its own for what forks ranks on behalf of a Python program, and what the two say to each other.

The ranks' parent becomes a subreaper, takes signals and forks: in a program with threads, an event loop or a GPU that
would do harm. So a fresh interpreter does it. Requests come by its standard input; events and the outcome go back as
datagrams, one pickle each. It dies with the program, and takes its ranks along.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Literal

from datagen.errors import DlemuError
from dlemu.comm import die_with_parent
from dlemu.config.schema import Workload
from dlemu.run.events import CheckpointProgress, DatasetMade, DatasetProgress, Doing, Event, TrainingStep

_LOOK_SECONDS = 0.2
_ENDING_SECONDS = 60.0
"""What an interrupted run may take to save what it measured."""
_SHOWN_LINES = 12
_PROGRAM = "from dlemu.api_process import main; main()"

OnEvent = Callable[[Event], None]
_PROGRESS = (TrainingStep, DatasetProgress, CheckpointProgress, Doing)
"""Events that a busy caller may miss."""


@dataclass(frozen=True)
class Request:
    """What to do."""

    command: Literal["train", "checkpoint", "datagen"]
    workload: Workload
    ranks: int = 0
    """Instead of the workload's, if not 0."""
    fsync: bool = False
    make: bool = False
    """What is read and missing first."""
    words: tuple[str, ...] = ()
    """The user's own."""


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    folder: str | None = None
    """Of the result of `train` or `checkpoint`."""
    error: DlemuError | None = None


def call(request: Request, on_event: OnEvent | None) -> str | DatasetMade:
    """Do what is asked in a process of its own; return the folder of a run, or what was made.

    Raises what the run raised. An exception here meanwhile, such as KeyboardInterrupt or one of `on_event`, ends the
    run, which saves what it measured; a note of the exception says where.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, tempfile.TemporaryFile() as output:
        with theirs:
            process = _start(theirs, output)
        conversation = _Conversation(process, ours, on_event)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                pickle.dump(request, process.stdin)
            conversation.listen()
        except BaseException as error:
            if (kept := conversation.end()) is not None:
                error.add_note(str(kept))
            raise
        return conversation.result(output)


def _start(line: socket.socket, output: IO[bytes]) -> subprocess.Popen[bytes]:
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    # A caller without standard streams (a service) leaves their numbers free, and the line may have got one of them.
    descriptor = fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(descriptor), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Modules of the caller's own are found; of OpenBLAS see dlemu.cli.
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C on a terminal is the caller's, who passes it on
        )
    finally:
        os.close(descriptor)


class _Conversation:
    """The caller's side."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket, on_event: OnEvent | None) -> None:
        self._process, self._line, self._on_event = process, line, on_event
        self._outcome: Outcome | None = None
        self._made: DatasetMade | None = None

    def listen(self) -> None:
        """Pass events on until the process has ended."""
        while True:
            readable, _, _ = select.select([self._line], [], [], _LOOK_SECONDS)
            if readable:
                if not self._take():
                    break
            elif self._process.poll() is not None:
                break
        self._process.wait()

    def _take(self) -> bool:
        """Take one datagram; return whether there was one."""
        datagram = self._line.recv(1 << 20)
        if not datagram:
            return False
        message: Event | Outcome = pickle.loads(datagram)
        if isinstance(message, Outcome):
            self._outcome = message
            return True
        if isinstance(message, DatasetMade):
            self._made = message
        if self._on_event is not None:
            self._on_event(message)
        return True

    def end(self) -> DlemuError | None:
        """Have the run saved and ended, for good in the end; return what it says of that."""
        self._on_event = None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _ENDING_SECONDS
        try:
            while self._process.poll() is None and time.monotonic() < deadline:
                if select.select([self._line], [], [], _LOOK_SECONDS)[0] and not self._take():
                    time.sleep(_LOOK_SECONDS)
        finally:  # Ctrl-C a second time
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        while select.select([self._line], [], [], 0)[0] and self._take():
            pass
        return self._outcome.error if self._outcome is not None else None

    def result(self, output: IO[bytes]) -> str | DatasetMade:
        """Return what came of it; raises what was raised."""
        outcome = self._outcome
        if outcome is None:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise DlemuError("\n".join([f"dlemu's process ended with status {self._process.returncode}:", *lines]))
        if outcome.error is not None:
            raise outcome.error
        result = outcome.folder or self._made
        assert result is not None  # each command leaves one of the two
        return result


def main() -> None:
    """Be the helper: do what standard input asks, and tell the caller."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    die_with_parent(int(sys.argv[2]), signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        outcome = Outcome(folder=_do(pickle.load(sys.stdin.buffer), line))
    except DlemuError as error:
        outcome = Outcome(error=error)
    except KeyboardInterrupt:
        outcome = Outcome(error=DlemuError("interrupted before anything was measured"))
    except BaseException as error:
        unforeseen = DlemuError(f"{type(error).__name__}: {error}")
        unforeseen.add_note(traceback.format_exc())
        outcome = Outcome(error=unforeseen)
    with contextlib.suppress(OSError):  # nobody listens any more
        line.send(pickle.dumps(outcome))


def _do(request: Request, line: socket.socket) -> str | None:
    from dlemu.cli.frontends import TerminalFrontend
    from dlemu.run.checkpoint_story import checkpoint
    from dlemu.run.datasets import make
    from dlemu.run.enough import enough
    from dlemu.run.training import train

    class Frontend(TerminalFrontend):
        """Like that of `dlemu train`, but that the caller is told what goes on."""

        def load(self) -> Workload:
            workload = request.workload
            return replace(workload, ranks=request.ranks) if request.ranks else workload

        def advise(self, workload: Workload, ranks: int, files_there: int) -> str:
            files = f"dataset.num_files_train={enough(workload, ranks).files}"
            return f"Wanted {files}" + ("." if files_there else "; make=True makes the dataset first.")

        def tell(self, event: Event) -> None:
            # A caller that is busy misses progress; it must not hold up the accelerators.
            flags = socket.MSG_DONTWAIT if isinstance(event, _PROGRESS) else 0
            with contextlib.suppress(OSError):
                line.send(pickle.dumps(event), flags)

    frontend = Frontend(request.words, None, make=request.make, yes=True)
    frontend.command = f"dlemu.{request.command}(...)"
    if request.command == "train":
        return train(frontend)
    if request.command == "checkpoint":
        return checkpoint(frontend, frontend.fit_checkpoints)
    make(frontend, fsync=request.fsync)
    return None
