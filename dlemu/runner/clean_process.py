"""A fresh interpreter for what forks workers: its caller may have threads, an event loop or a GPU, which no fork bears.

It gets one function and one argument by pickle; messages and a result come back the same way. It dies with its caller,
and takes its workers along.
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
    """Sends the caller something."""

    def __call__(self, message: object, *, droppable: bool = False) -> None:
        """`droppable`: a caller that is busy misses it, rather than that it holds this process up."""


_PROGRAM = "from dlemu.runner.clean_process import main; main()"
_SIZE = struct.Struct("<q")
_MESSAGE, _RESULT, _ERROR = range(3)
_ENDING_SECONDS = 5.0
"""From the end of its pipe to its own."""
_LOOK_SECONDS = 0.2  # an end closes the pipe; where a child keeps it open, the end is noticed so late
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
    """Return what `work(request, say)` returns in a process of its own; `on_message` gets what it says.

    `work` is a function of a module. Raises what it raised, and DlemuError when its process was killed, or says
    nothing for `patience_seconds`. An exception here meanwhile, such as KeyboardInterrupt or one of `on_message`, ends
    the process: at once, or by Ctrl-C with `saving_seconds` to save what it has, and a note that says what it kept.
    """
    parting = signal.SIGTERM if saving_seconds else signal.SIGKILL
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # it finds the modules found here
    with os.fdopen(os.memfd_create("dlemu-request"), "w+b") as asked, tempfile.TemporaryFile() as output:
        pickle.dump((work, request), asked)
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), str(int(parting))],
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},  # of OpenBLAS see dlemu.cli
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C on a terminal is the caller's, who passes it on
        )
        assert process.stdout is not None
        line = _Line(process, role)
        try:
            kind, content = line.outcome(on_message, patience_seconds)
        except BaseException as error:
            if saving_seconds and (kept := line.interrupted(saving_seconds)) is not None:
                error.add_note(str(kept))
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


class _Line:
    """What a process says, until its pipe is at its end: of one that was killed, perhaps in mid-message."""

    def __init__(self, process: subprocess.Popen[bytes], role: Role) -> None:
        self._process, self._role, self._received = process, role, bytearray()

    def outcome(self, on_message: Callable[[Any], None], patience_seconds: float) -> tuple[int, Any]:
        """Return how it ended; of one that reported nothing, a message."""
        outcome: tuple[int, Any] = (_MESSAGE, None)
        for kind, content in self._messages(patience_seconds):
            if kind == _MESSAGE:
                on_message(content)
            else:
                outcome = kind, content
                break
        return outcome

    def interrupted(self, seconds: float) -> DlemuError | None:
        """Have it save what it has and end, and return what it says of that."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(DlemuError):  # it takes longer, and is killed
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
            left = max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))
            if select.select([pipe], [], [], left)[0]:
                data = os.read(pipe, 1 << 20)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_ENDING_SECONDS)
                    return
                received += data
            elif self._process.poll() is not None:  # what it had forked may keep the pipe open
                return
            elif time.monotonic() >= deadline:
                raise DlemuError(overdue(self._role.name, self._process.pid, patience_seconds))


def main() -> None:
    """Be the fresh interpreter: do what standard input requests."""
    parent, parting = map(int, sys.argv[1:])
    die_with_parent(parent, parting)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a caller in the background ignores it
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as line:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no message

        def send(kind: int, content: object, *, droppable: bool = False) -> None:
            message = pickle.dumps((kind, content))
            if droppable and len(message) < select.PIPE_BUF and not select.select([], [line], [], 0)[1]:
                return
            with contextlib.suppress(OSError):  # nobody listens any more
                line.write(_SIZE.pack(len(message)) + message)
                line.flush()

        def emit(message: object, *, droppable: bool = False) -> None:
            send(_MESSAGE, message, droppable=droppable)

        try:
            work, request = pickle.load(sys.stdin.buffer)
            send(_RESULT, work(request, emit))
        except DlemuError as error:  # carried to the caller, as all others are
            send(_ERROR, error)
        except BaseException as error:
            unforeseen = DlemuError(f"{type(error).__name__}: {error}")
            unforeseen.add_note(traceback.format_exc())
            send(_ERROR, unforeseen)
