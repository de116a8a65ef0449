"""Runs a function in a fresh interpreter, where it can fork safely: its caller may have threads or use a GPU.

The function and its argument are sent by pickle; messages and the result come back in the same way. The process dies
with its caller, and its workers die with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from datagen.errors import DlemuError
from dlemu.comm import die_with_parent
from dlemu.comm.failure import Role, overdue
from dlemu.runner.child_run import end_group, how_ended

Request = TypeVar("Request")
Result = TypeVar("Result")


class Emit(Protocol):
    """Sends a message to the caller."""

    def __call__(self, message: object, *, droppable: bool = False) -> None:
        """Send; a `droppable` message is discarded if sending would have to wait for a busy caller."""


_PROGRAM = "from dlemu.runner.clean_process import main; main()"
_SIZE = struct.Struct("<q")
_MESSAGE, _RESULT, _ERROR = range(3)
_ENDING_SECONDS = 5.0
"""Wait for the process to exit after it has closed its pipe."""
_POLL_SECONDS = 0.2  # how late its exit is noticed if one of its children keeps the pipe open
_SHOWN_LINES = 12  # the end of a traceback, which names the error


def run_clean(
    work: Callable[[Request, Emit], Result],
    request: Request,
    role: Role,
    *,
    patience_seconds: float = math.inf,
    saving_seconds: float = 0.0,
    on_message: Callable[[Any], None] = lambda message: None,
) -> Result:
    """Return what `work(request, emit)` returns in a separate process; `on_message` is called with what it emits.

    `work` is a module-level function. Raises what it raises, and DlemuError if its process is killed, or emits nothing
    for `patience_seconds`. An exception in this process, such as KeyboardInterrupt or one from `on_message`, kills the
    other one; with `saving_seconds` SIGINT lets it save first, and an error that it then reports is added as a note.
    """
    death_signal = signal.SIGTERM if saving_seconds else signal.SIGKILL  # if this process dies
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # to import what this process can
    with os.fdopen(os.memfd_create("dlemu-request"), "w+b") as stdin, tempfile.TemporaryFile() as output:
        pickle.dump((work, request), stdin)
        stdin.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), str(int(death_signal))],
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},  # see dlemu.cli
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C on the terminal reaches only this process, which forwards it
        )
        assert process.stdout is not None
        replies = _Replies(process, role)
        try:
            kind, content = replies.outcome(on_message, patience_seconds)
        except BaseException as error:
            if saving_seconds and (reported := replies.interrupt(saving_seconds)) is not None:
                error.add_note(str(reported))
            raise
        finally:
            end_group(process)
            process.stdout.close()
        if kind == _ERROR:
            raise content
        if kind == _RESULT:
            result: Result = content
            return result
        output.seek(0)
        last = output.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
    raise DlemuError("\n".join([how_ended(role, process) + (":" if last else ""), *last]))


class _Replies:
    """Receives a process's messages until its pipe ends, which may be within a message if it was killed."""

    def __init__(self, process: subprocess.Popen[bytes], role: Role) -> None:
        self._process, self._role, self._received = process, role, bytearray()

    def outcome(self, on_message: Callable[[Any], None], patience_seconds: float) -> tuple[int, Any]:
        """Return its result or error as (kind, content); (_MESSAGE, None) if it sent neither."""
        outcome: tuple[int, Any] = (_MESSAGE, None)
        for kind, content in self._messages(patience_seconds):
            if kind == _MESSAGE:
                on_message(content)
            else:
                outcome = kind, content
                break
        return outcome

    def interrupt(self, seconds: float) -> DlemuError | None:
        """Interrupt the process, so that it saves and ends; return the error that it reports, None if none in time."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(DlemuError):  # it takes longer: the caller kills it
            kind, content = self.outcome(lambda message: None, seconds)
            return content if kind == _ERROR else None
        return None

    def _messages(self, patience_seconds: float) -> Iterator[tuple[int, Any]]:
        assert self._process.stdout is not None
        pipe, received = self._process.stdout.fileno(), self._received
        deadline = time.monotonic() + patience_seconds
        while True:
            while len(received) >= _SIZE.size and len(received) >= (end := _SIZE.size + _SIZE.unpack_from(received)[0]):
                message = pickle.loads(received[_SIZE.size : end])
                del received[:end]
                yield message
                deadline = time.monotonic() + patience_seconds
            left = max(0.0, min(_POLL_SECONDS, deadline - time.monotonic()))
            if select.select([pipe], [], [], left)[0]:
                data = os.read(pipe, 1 << 20)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_ENDING_SECONDS)
                    return
                received += data
            elif self._process.poll() is not None:  # its children may keep the pipe open
                return
            elif time.monotonic() >= deadline:
                raise DlemuError(overdue(self._role.name, self._process.pid, patience_seconds))


def main() -> None:
    """Entry point of the fresh interpreter: run the function that standard input contains."""
    parent, death_signal = map(int, sys.argv[1:])
    die_with_parent(parent, death_signal)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as pipe:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not mix with messages

        def send(kind: int, content: object, *, droppable: bool = False) -> None:
            message = pickle.dumps((kind, content))
            if droppable and len(message) < select.PIPE_BUF and not select.select([], [pipe], [], 0)[1]:
                return
            with contextlib.suppress(OSError):  # the caller is gone
                pipe.write(_SIZE.pack(len(message)) + message)
                pipe.flush()

        def emit(message: object, *, droppable: bool = False) -> None:
            send(_MESSAGE, message, droppable=droppable)

        try:
            work, request = pickle.load(sys.stdin.buffer)
            send(_RESULT, work(request, emit))
        except DlemuError as error:  # raised in the caller as it is, all others as DlemuError
            send(_ERROR, error)
        except BaseException as error:
            unexpected = DlemuError(f"{type(error).__name__}: {error}")
            unexpected.add_note(traceback.format_exc())
            send(_ERROR, unexpected)
