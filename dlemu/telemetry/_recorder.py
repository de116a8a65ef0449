"""One recorder a node: a process of low priority that reads every probe in its turn and appends to a log.

It is a process, not a thread, so that it never holds a trainer's interpreter lock; it dies with the rank that forked
it, after its probes tidied up: a block trace would stay in the kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import psutil

from datagen.errors import DlemuError
from datagen.owned import create_new
from datagen.registry import find, names
from dlemu.comm.process_control import after_fork_in_child, die_with_parent, name_process
from dlemu.telemetry._log import LogHead, LogLine, LogWriter, log_path, parse_log
from dlemu.telemetry._readings import HostTelemetry
from dlemu.telemetry.probe_base import COST_SHARE, NS_PER_SECOND, AbsentError, DeviceFacts, ProbeBase, Scope

NICE = 5
"""Between the trainers (0) and the workers (10): it never keeps a trainer waiting and is not starved by readers."""
_ANSWER_SECONDS = 10.0
"""How long a rank waits between epochs for a recorder that gets no core; then the run goes on without telemetry."""
_TIDY_SECONDS = 5
"""How long a recorder that is to end may take over it."""
_NULL, _CONTROL, _LOG = 0, 3, 4
BEGIN, END, STOP = b"b", b"e", b"s"
_TOGETHER = 0.2
"""Probes due within this share of the interval are read in one go."""
_AT_THE_END = 0.5
"""The same for the last reading: a rate over less than half an interval would say little."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a recorder is to do."""

    scope: Scope
    node: int
    interval_seconds: float


class Recorder:
    """The rank's side. After `stop`, or when it was lost, it does nothing."""

    def __init__(self, process: int, control: socket.socket, log: int) -> None:
        self._process, self._control, self._log = process, control, io.FileIO(log)
        self._alive = True
        self.lost = False
        """It was killed, stopped or too slow before its last reading; known after `stop`."""
        after_fork_in_child(self._forget)

    def mark(self, *, training: bool) -> None:
        """Note that an epoch's training begins or ended and have the devices read now; returns when it is done."""
        self._command(BEGIN if training else END)

    def stop(self) -> HostTelemetry | None:
        """End the recorder after a last reading and return what it wrote; None when it never came to write."""
        self._command(STOP)
        self.lost = not self._alive
        self._end()
        with self._log as log:
            log.seek(0)
            return parse_log(log.readall())

    def _end(self) -> None:
        """Hang up and wait; a recorder that does not end by itself in time is killed. What it wrote stays."""
        self._alive = False
        self._control.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process)
            try:
                process.wait(_TIDY_SECONDS)
            except psutil.TimeoutExpired:
                process.kill()
                with contextlib.suppress(psutil.TimeoutExpired):  # a file system's call that hangs can't be killed
                    process.wait(_TIDY_SECONDS)

    def _command(self, command: bytes) -> None:
        if not self._alive:
            return
        try:
            self._control.sendall(command)
            self._alive = self._control.recv(1) == command
        except OSError:  # it is gone, or the host is too busy to answer: the run goes on
            self._alive = False

    def _forget(self) -> None:
        self._alive = False
        self._control.close()
        self._log.close()


def start_recorder(task: Task, folder: str) -> Recorder:
    """Fork the recorder of this node; call it from the main thread, before threads are started.

    Its log is in the run's live folder, or in memory where this host can't see that folder.
    """
    log = _open_log(folder, task.node)
    ours, theirs = socket.socketpair()
    parent, process = os.getpid(), os.fork()
    if process == 0:
        _record(task, parent, theirs.fileno(), log)
    theirs.close()
    ours.settimeout(_ANSWER_SECONDS)
    return Recorder(process, ours, log)


def _open_log(folder: str, node: int) -> int:
    if not os.path.isdir(folder):
        return os.memfd_create("dlemu-telemetry")
    return create_new(log_path(folder, node))


def _record(task: Task, parent: int, control: int, log: int) -> NoReturn:
    try:
        _detach(control, log)
        die_with_parent(parent, signal.SIGTERM)
        name_process("dlemu-recorder")
        with contextlib.closing(Recording(task, LogWriter(_LOG))) as recording:
            os.nice(NICE)
            recording.run(_CONTROL)
    finally:
        os._exit(0)


def _detach(control: int, log: int) -> None:
    """Keep nothing of the rank's but the control socket and the log: the run's end must not wait for this process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop_by_signal)
    kept = (control, log, os.open(os.devnull, os.O_RDWR))
    control, log, null = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in kept)
    for source, target in ((null, _NULL), (null, 1), (null, 2), (control, _CONTROL), (log, _LOG)):
        os.dup2(source, target)
    os.closerange(_LOG + 1, os.sysconf("SC_OPEN_MAX"))


def _stop_by_signal(number: int, frame: FrameType | None) -> None:
    """End by SIGTERM: the control socket is at its end from now on, and the loop leaves by itself.

    An exception from here could cut short what makes or removes a trace. A rank that dies closes the socket before
    the kernel reports its death, so the probes are often tidying up when this comes.
    """
    os.dup2(_NULL, _CONTROL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_TIDY_SECONDS)  # a probe may hang


@dataclass
class _Turn:
    """A probe with its name and its turn."""

    name: str
    probe: ProbeBase
    due_ns: int = 0


class Recording:
    """One recorder's life."""

    def __init__(self, task: Task, log: LogWriter, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._log, self._now = log, now
        self._interval_ns = round(task.interval_seconds * NS_PER_SECOND)
        self._turns, devices, notes = _find_probes(task.scope)
        log.write(
            LogHead(
                host=socket.gethostname(),
                node=task.node,
                boot_id=boot_id(task.scope.proc),
                begun_ns=now(),
                interval_seconds=task.interval_seconds,
                probes=tuple(turn.name for turn in self._turns),
                devices=tuple(devices),
                notes=tuple(notes),
            )
        )

    def run(self, control: int) -> None:
        """Read until STOP comes through the control socket or its other end closes; answer every command once done."""
        poll = select.poll()
        poll.register(control, select.POLLIN)
        self.read()
        while True:
            if not poll.poll(self._milliseconds_to_next()):
                self.read()
                continue
            command = os.read(control, 1)
            if not command:
                return
            self.obey(command)
            os.write(control, command)
            if command == STOP:
                return

    def obey(self, command: bytes) -> None:
        """Do what the rank requests: an epoch's training BEGINs or ENDs, or all is to STOP."""
        for turn in [turn for turn in self._turns if turn.probe.exact]:
            turn.probe.train(command == BEGIN, self._now())
            self._read_one(turn)
            if command != BEGIN:
                description = turn.probe.describe()
                if description.trace:
                    self._log.write(LogLine(trace=description.trace, notes=description.notes))
        if command == STOP:
            self.read(ahead=_AT_THE_END)
            self.close()
        self._log.write(LogLine(end=self._now(), cpu_seconds=time.process_time()))

    def close(self) -> None:
        """Let the probes tidy up."""
        for turn in self._turns:
            turn.probe.close()

    def read(self, ahead: float = _TOGETHER) -> None:
        """Read the probes that are due within a share of the interval."""
        soon_ns = self._now() + round(ahead * self._interval_ns)
        for turn in list(self._turns):
            if turn.due_ns <= soon_ns:
                cost_ns, now_ns = self._read_one(turn), self._now()
                least_ns = 0 if turn.probe.exact else round(cost_ns / COST_SHARE)
                turn.due_ns = now_ns + max(self._interval_ns, least_ns)

    def _read_one(self, turn: _Turn) -> int:
        """Read a probe and return the CPU time it took; one that fails is not read again.

        A log that can't be written ends the recorder.
        """
        begun_ns, now_ns = time.thread_time_ns(), self._now()
        try:
            readings = list(turn.probe.read(now_ns))
        except Exception as error:
            self._turns.remove(turn)
            note = f"telemetry: the probe {turn.name} was stopped: {type(error).__name__}: {error}"
            self._log.write(LogLine(note=note))
        else:
            self._log.add(turn.name, now_ns, readings)
        return time.thread_time_ns() - begun_ns

    def _milliseconds_to_next(self) -> int:
        due_ns = min((turn.due_ns for turn in self._turns), default=self._now() + self._interval_ns)
        return max(0, -(-(due_ns - self._now()) // 1_000_000))


def _find_probes(scope: Scope) -> tuple[list[_Turn], list[DeviceFacts], list[str]]:
    """Return the probes that have something to read here, their devices, and notes of these and of all others."""
    turns: list[_Turn] = []
    devices: list[DeviceFacts] = []
    notes: list[str] = []
    for name in names("dlemu.telemetry"):
        try:
            probe: ProbeBase = find("dlemu.telemetry", name, "Probe")(scope)
            description = probe.describe()
        except AbsentError as error:
            if str(error):
                notes.append(str(error))
            continue
        except (DlemuError, OSError, ValueError) as error:
            notes.append(f"telemetry: the probe {name} could not start: {error}")
            continue
        turns.append(_Turn(name, probe))
        notes += description.notes
        devices += description.devices
    return turns, devices, notes


def boot_id(proc: str = "/proc") -> str:
    """Return the running kernel's own number."""
    with contextlib.suppress(OSError), open(f"{proc}/sys/kernel/random/boot_id") as line:
        return line.read().strip()
    return ""
