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
from dataclasses import dataclass, replace
from typing import IO, Literal

from datagen.errors import DatasetError, DlemuError
from dlemu.comm import die_with_parent
from dlemu.comm.failure import RANK, Role
from dlemu.config.schema import Workload
from dlemu.runner.child_run import end_group, how_ended
from dlemu.runner.clean_process import start_interpreter
from dlemu.runner.events import (
    CheckpointProgress,
    DatasetMade,
    DatasetProgress,
    Doing,
    Event,
    OnEvent,
    Saved,
    TrainingStep,
    to_all,
)

_LOOK_SECONDS = 0.2
_ENDING_SECONDS = 60.0
"""What an interrupted run may take to save what it measured."""
_SHOWN_LINES = 12
_PROGRAM = "from dlemu.api_process import main; main()"
_PROCESS = Role("dlemu's process", RANK.remedy)

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
    size_is_given: bool = False
    """The dataset's number of files is the user's own."""


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    result: str | DatasetMade | None = None
    """The folder of `train` or `checkpoint`, or what `datagen` made."""
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
    # A caller without standard streams (a service) leaves their numbers free, and the line may have got one of them.
    descriptor = fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return start_interpreter(
            _PROGRAM,
            [str(descriptor), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[descriptor],
        )
    finally:
        os.close(descriptor)


class _Conversation:
    """The caller's side."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket, on_event: OnEvent | None) -> None:
        self._process, self._line, self._on_event = process, line, on_event
        self._outcome: Outcome | None = None

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
            end_group(self._process)
        while select.select([self._line], [], [], 0)[0] and self._take():
            pass
        return self._outcome.error if self._outcome is not None else None

    def result(self, output: IO[bytes]) -> str | DatasetMade:
        """Return what came of it; raises what was raised."""
        outcome = self._outcome
        if outcome is None:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise DlemuError("\n".join([f"{how_ended(_PROCESS, self._process)}:", *lines]))
        if outcome.error is not None:
            raise outcome.error
        assert outcome.result is not None  # each command leaves one of the two
        return outcome.result


def main() -> None:
    """Be the helper: do what standard input asks, and tell the caller."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    die_with_parent(int(sys.argv[2]), signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        outcome = Outcome(result=_do(pickle.load(sys.stdin.buffer), line))
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


def _do(request: Request, line: socket.socket) -> str | DatasetMade | None:
    from dlemu.dlio.export import export_beside
    from dlemu.report.run_log import log_of
    from dlemu.results.kinds import kind_of_command
    from dlemu.runner.datasets import make
    from dlemu.runner.job import JobRequest, MakeFirst, NoVerdictError, run_alone

    def send(event: Event) -> None:
        if isinstance(event, Saved):  # the folder has it
            return
        # A caller that is busy misses progress; it must not hold up the accelerators.
        flags = socket.MSG_DONTWAIT if isinstance(event, _PROGRESS) else 0
        with contextlib.suppress(OSError):
            line.send(pickle.dumps(event), flags)

    workload = replace(request.workload, ranks=request.ranks) if request.ranks else request.workload
    if request.command == "datagen":
        return make(JobRequest(load=lambda: workload), send, fsync=request.fsync)
    make_first = MakeFirst(request.size_is_given, lambda making, ranks: None) if request.make else None
    on_event = to_all(send, export_beside, log_of(f"dlemu.{request.command}(...)"))
    kind = kind_of_command(request.command).part("job")
    try:
        result = run_alone(JobRequest(load=lambda: workload, make_first=make_first), on_event, kind)
    except NoVerdictError as error:
        files = f"dataset.num_files_train={error.files_wanted}"
        advice = f"Wanted {files}" + ("." if error.files_there else "; make=True makes the dataset first.")
        raise DatasetError(error.advised(advice)) from error
    return None if result is None else result.folder
