"""One recorder a node: a process of low priority that reads the probes and appends to a log.

It is a process, not a thread, so that it never holds a trainer's interpreter lock; it dies with the rank that forked
it, after its probes tidied up: a block trace would stay in the kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import socket
from types import FrameType
from typing import NoReturn

import psutil

from dlemu.comm.process import after_fork_in_child, die_with_parent, name_process
from dlemu.telemetry._log import LogWriter, log_path, parse_log
from dlemu.telemetry._readings import HostTelemetry
from dlemu.telemetry._recording import BEGIN, END, STOP, Recording, Task

NICE = 5
"""Between the trainers (0) and the workers (10): it never keeps a trainer waiting and is not starved by readers."""
_ANSWER_SECONDS = 10.0
"""How long a rank waits between epochs for a recorder that gets no core; then the run goes on without telemetry."""
_TIDY_SECONDS = 5
"""How long a recorder that is told to end may take over it."""
_NULL, _LINE, _LOG = 0, 3, 4


class Recorder:
    """The rank's side. After `stop`, or when it was lost, it does nothing."""

    def __init__(self, process: int, line: socket.socket, log: int) -> None:
        self._process, self._line, self._log = process, line, io.FileIO(log)
        self._alive = True
        after_fork_in_child(self._forget)

    def mark(self, *, training: bool) -> None:
        """Tell that an epoch's training begins or ended, and have the devices read now; returns when it is done."""
        self._ask(BEGIN if training else END)

    def stop(self) -> HostTelemetry | None:
        """End the recorder after a last reading and return what it wrote; None when it never came to write."""
        self._ask(STOP)
        self._end()
        with self._log as log:
            log.seek(0)
            return parse_log(log.readall())

    def _end(self) -> None:
        """Hang up and wait; a recorder that does not end by itself in time is killed. What it wrote stays."""
        self._alive = False
        self._line.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process)
            try:
                process.wait(_TIDY_SECONDS)
            except psutil.TimeoutExpired:
                process.kill()
                with contextlib.suppress(psutil.TimeoutExpired):  # a file system's call that hangs can't be killed
                    process.wait(_TIDY_SECONDS)

    def _ask(self, word: bytes) -> None:
        if not self._alive:
            return
        try:
            self._line.sendall(word)
            self._alive = self._line.recv(1) == word
        except OSError:  # it is gone, or the host is too busy to answer: the run goes on
            self._alive = False

    def _forget(self) -> None:
        self._alive = False
        self._line.close()
        self._log.close()


def start_recorder(task: Task, folder: str) -> Recorder:
    """Fork the recorder of this node; call it from the main thread, before threads are started.

    Its log lies in the run's live folder, or in memory where this host can't see that folder.
    """
    log = _open_log(folder, task.node)
    ours, theirs = socket.socketpair()
    parent, process = os.getpid(), os.fork()
    if process == 0:
        _live(task, parent, theirs.fileno(), log)
    theirs.close()
    ours.settimeout(_ANSWER_SECONDS)
    return Recorder(process, ours, log)


def _open_log(folder: str, node: int) -> int:
    if not os.path.isdir(folder):
        return os.memfd_create("dlemu-telemetry")
    return os.open(log_path(folder, node), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def _live(task: Task, parent: int, line: int, log: int) -> NoReturn:
    try:
        _let_go(line, log)
        die_with_parent(parent, signal.SIGTERM)
        name_process("dlemu-recorder")
        with contextlib.closing(Recording(task, LogWriter(_LOG))) as recording:
            os.nice(NICE)
            recording.run(_LINE)
    finally:
        os._exit(0)


def _let_go(line: int, log: int) -> None:
    """Keep nothing of the rank's but the line and the log: the run's end must not wait for this process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _hang_up)
    line, log, null = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (line, log, os.open(os.devnull, os.O_RDWR)))
    for source, target in ((null, _NULL), (null, 1), (null, 2), (line, _LINE), (log, _LOG)):
        os.dup2(source, target)
    os.closerange(_LOG + 1, os.sysconf("SC_OPEN_MAX"))


def _hang_up(number: int, frame: FrameType | None) -> None:
    """Be told to end: the line is at its end from now on, and the loop leaves by itself.

    An exception from here could cut short what makes or removes a trace. A rank that dies closes the line before the
    kernel tells its death, so the probes are often tidying up when this comes.
    """
    os.dup2(_NULL, _LINE)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_TIDY_SECONDS)  # a probe may hang
