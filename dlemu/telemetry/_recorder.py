"""The recorder: one low-priority process per node, which reads all probes at intervals and appends readings to a log.

It is a process, not a thread, so that it never holds a rank's interpreter lock. It dies with its parent rank. A rank
makes it read the `exact` probes, those with figures for each epoch, also when an epoch's training begins or ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import os
import select
import signal
import socket
import time
from functools import partial

import psutil

from datagen.errors import DlemuError
from datagen.owned import create_new
from datagen.registry import find, names
from dlemu.ranks.process_control import die_with_parent, fork_process, name_process
from dlemu.telemetry._readings import HostTelemetry, LogLine, LogWriter, RecorderHead, log_path, parse_log
from dlemu.telemetry.probe_base import COST_SHARE, NS_PER_SECOND, AbsentError, ProbeBase, Scope, read_text

NICE = 5  # between ranks (0) and loader workers (10): the recorder does not delay ranks, and workers do not starve it
_REPLY_TIMEOUT_SECONDS = 10.0  # how long a rank waits for a reply; after that, the run continues without telemetry
_SHUTDOWN_SECONDS = 5  # how long a recorder may take to end
_NULL, _CONTROL, _LOG = 0, 3, 4  # file descriptors in the recorder
MARK = b"m"  # command: an epoch's training begins or ends
STOP = b"s"  # command: read once more, and end
_SLACK = 0.2  # share of the interval: a probe that is due so soon is read together with those that are due now
_FINAL_SLACK = 0.5  # the same at the last reading, as a rate over less than half an interval would be too noisy


class Recorder:
    """A rank's handle on the recorder process. Call `stop` once; `mark` does nothing if the process is lost."""

    def __init__(self, process: int, control: socket.socket, log: int) -> None:
        self._process = process
        self._control = control
        self._log = io.FileIO(log)
        self._alive = True
        self.lost = False  # set by `stop`: whether the process was killed, suspended or too slow for its last reading
        os.register_at_fork(after_in_child=self._forget)  # only the rank itself may use the handle, not its children

    def mark(self) -> None:
        """Make the recorder read the exact probes, and wait for that; called as an epoch's training begins or ends."""
        self._command(MARK)

    def stop(self) -> HostTelemetry | None:
        """End the recorder after a last reading; return its telemetry, or None if it wrote none."""
        self._command(STOP)
        self.lost = not self._alive
        self._alive = False
        self._control.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            _, alive = psutil.wait_procs([psutil.Process(self._process)], _SHUTDOWN_SECONDS)
            for process in alive:
                process.kill()
            psutil.wait_procs(alive, _SHUTDOWN_SECONDS)  # a process in a hung system call can't be killed
        with self._log as log:
            log.seek(0)
            return parse_log(log.readall())

    def _command(self, command: bytes) -> None:
        if not self._alive:
            return
        try:
            self._control.sendall(command)
            self._alive = self._control.recv(1) == command
        except OSError:  # the recorder is gone, or the host too busy: the run continues without it
            self._alive = False

    def _forget(self) -> None:
        self._alive = False
        self._control.close()
        self._log.close()


def start_recorder(scope: Scope, folder: str) -> Recorder:
    """Fork the recorder of this node; call this from the main thread before other threads are started.

    The log is in the run's live folder, or in memory if this host can't see that folder.
    """
    is_visible = os.path.isdir(folder)
    log = create_new(log_path(folder, scope.node)) if is_visible else os.memfd_create("dlemu-telemetry")
    control, recorder_control = socket.socketpair()
    process = fork_process(partial(_record, scope, os.getpid(), recorder_control.fileno(), log))
    recorder_control.close()
    control.settimeout(_REPLY_TIMEOUT_SECONDS)
    return Recorder(process, control, log)


def _record(scope: Scope, parent: int, control: int, log: int) -> int:
    """Run the recorder in this forked process until it is stopped; return the exit status."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Only the control socket and the log stay open: readers of the rank's other pipes and sockets would wait for this
    # process. Both, and /dev/null, are first copied to 10 and above, so that no `dup2` overwrites one still needed.
    descriptors = (control, log, os.open(os.devnull, os.O_RDWR))
    control, log, null = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in descriptors)
    for source, target in ((null, _NULL), (null, 1), (null, 2), (control, _CONTROL), (log, _LOG)):
        os.dup2(source, target)
    os.closerange(_LOG + 1, os.sysconf("SC_OPEN_MAX"))
    die_with_parent(parent, signal.SIGKILL)
    name_process("dlemu-recorder")
    loop = RecorderLoop(scope, LogWriter(_LOG))
    os.nice(NICE)
    loop.run(_CONTROL)
    return 0


class RecorderLoop:
    """The loop of the recorder process: reads probes and writes the log until it is stopped."""

    def __init__(self, scope: Scope, log: LogWriter) -> None:
        self._log = log
        self._interval_ns = round(scope.interval_seconds * NS_PER_SECOND)
        self._probes, notes = _find_probes(scope)
        self._due_ns = dict.fromkeys(self._probes, 0)
        log.write(
            RecorderHead(
                host=socket.gethostname(),
                node=scope.node,
                boot_id=read_text(f"{scope.proc}/sys/kernel/random/boot_id"),
                interval_seconds=scope.interval_seconds,
                probes=tuple(self._probes),
                devices=tuple(device for probe in self._probes.values() for device in probe.devices),
                notes=tuple(notes),
            )
        )

    def run(self, control: int) -> None:
        """Read probes until the control socket delivers STOP or is closed; echo each command once it is done."""
        poll = select.poll()
        poll.register(control, select.POLLIN)
        self.read()
        while True:
            due_ns = min((self._due_ns[name] for name in self._probes), default=time.monotonic_ns() + self._interval_ns)
            if not poll.poll(max(0, math.ceil((due_ns - time.monotonic_ns()) / 1e6))):
                self.read()
                continue
            command = os.read(control, 1)
            if not command:
                return
            self.handle(command)
            os.write(control, command)
            if command == STOP:
                return

    def handle(self, command: bytes) -> None:
        """Execute a command: both read the exact probes, and STOP then reads all probes that are due soon."""
        for name, probe in list(self._probes.items()):
            if probe.exact:
                probe.mark(time.monotonic_ns())
                self._read_one(name)
        if command == STOP:
            self.read(slack=_FINAL_SLACK)
        self._log.write(LogLine(cpu_seconds=time.process_time()))

    def read(self, slack: float = _SLACK) -> None:
        """Read the probes that are due now, or within the share `slack` of the interval."""
        soon_ns = time.monotonic_ns() + round(slack * self._interval_ns)
        for name, probe in list(self._probes.items()):
            if self._due_ns[name] <= soon_ns:
                cost_ns = self._read_one(name)
                min_interval_ns = 0 if probe.exact else round(cost_ns / COST_SHARE)  # exact probes limit their cost
                self._due_ns[name] = time.monotonic_ns() + max(self._interval_ns, min_interval_ns)

    def _read_one(self, name: str) -> int:
        """Read a probe; return the CPU time that this took in ns. If it fails, the probe is not read again."""
        cpu_before_ns = time.thread_time_ns()
        now_ns = time.monotonic_ns()
        try:
            readings = list(self._probes[name].read(now_ns))
        except Exception as error:
            del self._probes[name]
            note = f"telemetry: the probe {name} was stopped: {type(error).__name__}: {error}"
            self._log.write(LogLine(note=note))
        else:
            self._log.add(name, now_ns, readings)  # outside of `try`: if the log can't be written, the recorder ends
        return time.thread_time_ns() - cpu_before_ns


def _find_probes(scope: Scope) -> tuple[dict[str, ProbeBase], list[str]]:
    """Return the probes whose counters this host has, by name, and the notes of all probes, even of missing ones."""
    probes: dict[str, ProbeBase] = {}
    notes: list[str] = []
    for name in names("dlemu.telemetry"):
        try:
            probes[name] = find("dlemu.telemetry", name, "Probe")(scope)
            notes += probes[name].notes
        except AbsentError as error:
            if str(error):
                notes.append(str(error))
        except (DlemuError, OSError, ValueError) as error:
            notes.append(f"telemetry: the probe {name} could not start: {error}")
    return probes, notes
