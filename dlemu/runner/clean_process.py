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
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from datagen.errors import DlemuError
from dlemu.comm import die_with_parent
from dlemu.comm.failure import Role, overdue
from dlemu.runner.child_run import end_group, how_ended

Request = TypeVar("Request")
Result = TypeVar("Result")
Say = Callable[[object], None]

_PROGRAM = "from dlemu.runner.clean_process import main; main()"
_SIZE = struct.Struct("<q")
_MESSAGE, _RESULT, _ERROR = range(3)
_ENDING_SECONDS = 5.0
"""From the end of its pipe to its own."""


def start_interpreter(program: str, words: Sequence[str] = (), **streams: Any) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that finds the modules which this one finds, in a session of its own.

    Ctrl-C on a terminal is the caller's, who passes it on.
    """
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *words],
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},  # of OpenBLAS see dlemu.cli
        start_new_session=True,
        **streams,
    )


def run_clean(
    work: Callable[[Request, Say], Result],
    request: Request,
    role: Role,
    *,
    patience_seconds: float = math.inf,
    on_message: Callable[[Any], None] = lambda message: None,
) -> Result:
    """Return what `work(request, say)` returns in a process of its own; `on_message` gets what it says.

    `work` is a function of a module. Raises what it raised, and DlemuError when its process was killed, or says
    nothing for `patience_seconds`.
    """
    with os.fdopen(os.memfd_create("dlemu-request"), "w+b") as asked:
        pickle.dump((os.getpid(), work, request), asked)
        asked.seek(0)
        process = start_interpreter(_PROGRAM, stdin=asked, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        for kind, content in _messages(process, role, patience_seconds):
            if kind == _ERROR:
                raise content
            if kind == _RESULT:
                result: Result = content
                return result
            on_message(content)
    finally:
        end_group(process)
        process.stdout.close()
    raise DlemuError(how_ended(role, process))


def _messages(process: subprocess.Popen[bytes], role: Role, patience_seconds: float) -> Iterator[tuple[int, Any]]:
    """Yield what a process says, until its pipe is at its end: of one that was killed, perhaps in mid-message."""
    assert process.stdout is not None
    deadline, received = time.monotonic() + patience_seconds, bytearray()
    while True:
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            raise DlemuError(overdue(role.name, process.pid, patience_seconds))
        data = os.read(process.stdout.fileno(), 1 << 20)
        if not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_SECONDS)
            return
        received += data
        while len(received) >= _SIZE.size and len(received) >= (end := _SIZE.size + _SIZE.unpack_from(received)[0]):
            message = pickle.loads(received[_SIZE.size : end])
            del received[:end]
            yield message
            deadline = time.monotonic() + patience_seconds


def main() -> None:
    """Be the fresh interpreter: do what standard input asks."""
    parent, work, request = pickle.load(sys.stdin.buffer)
    die_with_parent(parent)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as line:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no message

        def send(kind: int, content: object) -> None:
            message = pickle.dumps((kind, content))
            line.write(_SIZE.pack(len(message)) + message)
            line.flush()

        try:
            send(_RESULT, work(request, lambda message: send(_MESSAGE, message)))
        except BaseException as error:  # carried to the caller
            send(_ERROR, error if isinstance(error, DlemuError) else DlemuError(f"{type(error).__name__}: {error}"))
