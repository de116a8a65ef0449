"""The recorder's loop: every probe in its turn, until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from datagen.errors import DlemuError
from datagen.registry import find, names
from dlemu.telemetry._log import LogHead, LogLine, LogWriter
from dlemu.telemetry.probe_base import NS_PER_SECOND, AbsentError, DeviceFacts, ProbeBase, Scope

BEGIN, END, STOP = b"b", b"e", b"s"
COST_SHARE = 0.005
"""Most of a core that one probe may take on average: a probe that costs more is read less often."""
_TOGETHER = 0.2
"""Probes due within this share of the interval are read in one go."""
_AT_THE_END = 0.5
"""The same for the last reading: a rate over less than half an interval would say little."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a recorder is asked to do."""

    scope: Scope
    node: int
    interval_seconds: float


@dataclass
class _Watched:
    """A probe with its name and its turn."""

    name: str
    probe: ProbeBase
    due_ns: int = 0


@dataclass
class _Found:
    """The probes that have something to read here, and why others have not."""

    watched: list[_Watched] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    devices: list[DeviceFacts] = field(default_factory=list)


class Recording:
    """One recorder's life."""

    def __init__(self, task: Task, log: LogWriter, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._log, self._now = log, now
        self._interval_ns = round(task.interval_seconds * NS_PER_SECOND)
        found = _find_probes(task.scope)
        self._watched = found.watched
        log.write(
            LogHead(
                host=socket.gethostname(),
                node=task.node,
                boot_id=boot_id(task.scope.proc),
                begun_ns=now(),
                interval_seconds=task.interval_seconds,
                probes=tuple(watched.name for watched in found.watched),
                devices=tuple(found.devices),
                notes=tuple(found.notes),
            )
        )

    def run(self, line: int) -> None:
        """Read until STOP arrives on the line or its other end closes; every word is answered when it was heeded."""
        poll = select.poll()
        poll.register(line, select.POLLIN)
        self.read()
        while True:
            if not poll.poll(self._milliseconds_to_next()):
                self.read()
                continue
            word = os.read(line, 1)
            if not word:
                return
            self.heed(word)
            os.write(line, word)
            if word == STOP:
                return

    def heed(self, word: bytes) -> None:
        """Do what the rank asks for: an epoch's training BEGINs or ENDs, or all is to STOP."""
        for watched in [one for one in self._watched if one.probe.exact]:
            watched.probe.train(word == BEGIN, self._now())
            self._read_one(watched)
            if word != BEGIN:
                said = watched.probe.describe()
                if said.trace:
                    self._log.write(LogLine(trace=said.trace, notes=said.notes))
        if word == STOP:
            self.read(ahead=_AT_THE_END)
            self.close()
        self._log.write(LogLine(end=self._now(), cpu_seconds=time.process_time()))

    def close(self) -> None:
        """Let the probes tidy up."""
        for watched in self._watched:
            watched.probe.close()

    def read(self, ahead: float = _TOGETHER) -> None:
        """Read the probes that are due within a share of the interval."""
        soon_ns = self._now() + round(ahead * self._interval_ns)
        for watched in list(self._watched):
            if watched.due_ns <= soon_ns:
                cost_ns, now_ns = self._read_one(watched), self._now()
                least_ns = 0 if watched.probe.exact else round(cost_ns / COST_SHARE)
                watched.due_ns = now_ns + max(self._interval_ns, least_ns)

    def _read_one(self, watched: _Watched) -> int:
        """Read a probe and return the CPU time it took; one that fails is not asked again.

        A log that can't be written ends the recorder.
        """
        begun_ns, now_ns = time.thread_time_ns(), self._now()
        try:
            readings = list(watched.probe.read(now_ns))
        except Exception as error:
            self._watched.remove(watched)
            note = f"telemetry: the probe {watched.name} was given up: {type(error).__name__}: {error}"
            self._log.write(LogLine(note=note))
        else:
            self._log.add(watched.name, now_ns, readings)
        return time.thread_time_ns() - begun_ns

    def _milliseconds_to_next(self) -> int:
        due_ns = min((watched.due_ns for watched in self._watched), default=self._now() + self._interval_ns)
        return max(0, -(-(due_ns - self._now()) // 1_000_000))


def _find_probes(scope: Scope) -> _Found:
    found = _Found()
    for name in names("dlemu.telemetry"):
        try:
            probe: ProbeBase = find("dlemu.telemetry", name, "Probe")(scope)
            said = probe.describe()
        except AbsentError as error:
            if str(error):
                found.notes.append(str(error))
            continue
        except (DlemuError, OSError, ValueError) as error:
            found.notes.append(f"telemetry: the probe {name} could not start: {error}")
            continue
        found.watched.append(_Watched(name, probe))
        found.notes += said.notes
        found.devices += said.devices
    return found


def boot_id(proc: str = "/proc") -> str:
    """Return the running kernel's own number."""
    with contextlib.suppress(OSError), open(f"{proc}/sys/kernel/random/boot_id") as line:
        return line.read().strip()
    return ""
