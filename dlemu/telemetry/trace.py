"""The block trace: follows every request to the dataset's devices; needs `telemetry.block_trace=true` and root.

Its histograms (queue depth, latency, request size) cover only the training of each epoch. Events come from a tracefs
instance of dlemu's own, isolated from other tracers and removed with the recorder; see https://docs.kernel.org/trace/
events.html and ftrace.html (instances, trace_clock, trace_pipe). `Requests` only parses text: its tests need no kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dlemu.telemetry._devices import device_stack, mounts
from dlemu.telemetry.probe_base import AbsentError, Bin, Description, ProbeBase, Reading, Scope

_OPERATIONS = {b"R": "read", b"W": "write"}
_BINS_PER_DOUBLING = 8  # of latency: each bin is 9 % wide
_SECTOR_KIB = 0.5  # the block layer's sectors are 512 bytes

_ISSUE, _COMPLETE, _REQUEUE = b"icr"
_EVENT = b": block_rq_"
_KINDS = {b"issue:": _ISSUE, b"complete:": _COMPLETE, b"requeue:": _REQUEUE}

_EVENTS = ("block_rq_issue", "block_rq_complete", "block_rq_requeue")
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000  # linux/sched.h and linux/mount.h
_PREFIX = "dlemu-"
_BUFFER_KIB_PER_CPU = 8192  # an event takes about 60 bytes: room for 140,000 per core between readings
_CHUNK_BYTES = 1 << 20  # more than one read of trace_pipe returns


class Probe(ProbeBase):
    """Traces the devices below the dataset. md and most dm devices have no events: they pass requests on to others."""

    exact = True

    def __init__(self, scope: Scope) -> None:
        if not scope.block_trace:
            raise AbsentError("")
        numbers = _device_numbers(scope)
        if not numbers:
            raise AbsentError("telemetry.block_trace: no block device is behind the dataset's folder")
        self._requests = Requests({number.replace(":", ",").encode(): name for number, name in numbers.items()})
        self._trace = Trace(numbers, scope.sys)

    def describe(self) -> Description:
        """Return the histograms so far, and a note if events were lost."""
        lost = self._trace.lost_events()
        notes = (f"telemetry.block_trace: {lost} events were lost and are missing from the histograms",) if lost else ()
        return Description(notes=notes, trace=tuple(self._requests.bins()))

    def train(self, training: bool, now_ns: int) -> None:
        """Start or stop filling the histograms."""
        self._requests.add(self._trace.lines())
        self._requests.count(training, now_ns // 1000)

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Fetch new events; yield the mean queue depths since the last reading."""
        self._requests.add(self._trace.lines())
        for device, operation, depth in self._requests.mean_depths(now_ns // 1000):
            yield Reading(device, f"queue_depth_{operation}", depth)

    def close(self) -> None:
        """Remove the trace instance from the kernel."""
        self._trace.close()


def _device_numbers(scope: Scope) -> dict[str, str]:
    """Return `major:minor` -> name of the devices below the folders, without partitions: events name whole disks."""
    table = mounts(scope.proc)
    names = {}
    for folder in scope.folders:
        for device in device_stack(folder, table, scope.sys).devices:
            if device.kind != "partition":
                with open(f"{scope.sys}/class/block/{device.name}/dev") as line:
                    names[line.read().strip()] = device.name
    return names


@dataclass
class _Queue:
    """The reads, or the writes, of one device."""

    depth: int = 0
    depth_us: int = 0
    """Sum of depth x time since the last mean was computed."""
    at_depth_us: Counter[int] = field(default_factory=Counter)
    """Queue depth -> time spent at it."""
    latencies: Counter[int] = field(default_factory=Counter)  # number of the bin -> requests
    sectors: Counter[int] = field(default_factory=Counter)  # sectors per request -> requests


class Requests:
    """Follows the requests of some devices from issue to completion."""

    def __init__(self, devices: dict[bytes, str]) -> None:
        """Follow `devices`: number as events write it, such as b"7,0" -> name."""
        self._queues = {(number, letter): _Queue() for number in devices for letter in _OPERATIONS}
        self._names = devices
        self._issued: dict[tuple[bytes, bytes, bytes], tuple[int, int]] = {}
        self._now_us = self._mean_from_us = 0
        self._counting = False

    def count(self, counting: bool, now_us: int) -> None:
        """Start or stop filling the histograms."""
        self._advance(now_us)
        self._counting = counting

    def add(self, lines: Iterable[bytes]) -> None:
        """Process events, given as lines of the trace in order of time."""
        for line in lines:
            event = _parse(line)
            if event is not None:
                self._event(*event)

    def mean_depths(self, now_us: int) -> Iterator[tuple[str, str, float]]:
        """Yield (device, operation, mean queue depth since the last call)."""
        self._advance(now_us)
        passed_us = now_us - self._mean_from_us
        for (number, letter), queue in self._queues.items():
            if self._mean_from_us and passed_us > 0:
                yield self._names[number], _OPERATIONS[letter], queue.depth_us / passed_us
            queue.depth_us = 0
        self._mean_from_us = now_us

    def bins(self) -> Iterator[Bin]:
        """Yield the bins of all histograms."""
        for (number, letter), queue in self._queues.items():
            head = self._names[number], _OPERATIONS[letter]
            for depth, us in sorted(queue.at_depth_us.items()):
                yield Bin(*head, "queue_depth_seconds", depth, depth + 1, us / 1e6)
            for bin_number, requests in sorted(queue.latencies.items()):
                yield Bin(*head, "latency_us", _bin_start_us(bin_number), _bin_start_us(bin_number + 1), requests)
            for sectors, requests in sorted(queue.sectors.items()):
                low = sectors * _SECTOR_KIB
                yield Bin(*head, "request_kib", low, low + _SECTOR_KIB, requests)

    def _event(self, now_us: int, kind: int, number: bytes, letter: bytes, sector: bytes, sectors: int) -> None:
        queue = self._queues.get((number, letter))
        if queue is None:
            return
        self._advance(now_us)
        key = number, letter, sector
        if kind == _ISSUE:
            queue.depth += key not in self._issued  # a request issued twice counts once, from its last issue
            self._issued[key] = now_us, sectors
            return
        issued = self._issued.pop(key, None)
        if issued is None:  # it was issued before the trace began
            return
        queue.depth -= 1
        if kind == _COMPLETE and self._counting:
            queue.latencies[_latency_bin(now_us - issued[0])] += 1
            queue.sectors[issued[1]] += 1

    def _advance(self, now_us: int) -> None:
        """Advance the clock and count the time at the current depths; events of several CPUs may come unordered."""
        passed_us = now_us - self._now_us if self._now_us else 0
        if passed_us > 0:
            for queue in self._queues.values():
                queue.depth_us += queue.depth * passed_us
                if self._counting:
                    queue.at_depth_us[queue.depth] += passed_us
        self._now_us = max(self._now_us, now_us)


def _parse(line: bytes) -> tuple[int, int, bytes, bytes, bytes, int] | None:
    """Return time (us), kind, device, R or W, first sector, and number of sectors; None if not a read or write.

    A line is `COMM-PID [CPU] 12.345678: block_rq_issue: 7,0 RA 4096 () 8 + 8 ...`; only an issue has the bytes (4096).
    """
    head, event, tail = line.partition(_EVENT)
    if not event:
        return None
    sides = tail.partition(b" + ")
    fields = sides[0].split()
    kind, number, flags, sector = _KINDS.get(fields[0], 0), fields[1], fields[2], fields[-1]
    letter = b"R" if b"R" in flags else b"W" if b"W" in flags else b""
    if not kind or not letter:
        return None
    seconds, _, micros = head.rsplit(None, 1)[-1].partition(b".")
    return int(seconds) * 1_000_000 + int(micros), kind, number, letter, sector, int(sides[2].split(None, 1)[0])


def _latency_bin(latency_us: int) -> int:
    """Return the number of a latency's bin; bin 0 begins at 1 us."""
    return int(math.log2(max(1, latency_us)) * _BINS_PER_DOUBLING + 1e-9)


def _bin_start_us(bin_number: int) -> float:
    return float(2 ** (bin_number / _BINS_PER_DOUBLING))


class Trace:
    """A tracefs instance: the events of some devices as text lines, with CLOCK_MONOTONIC timestamps."""

    def __init__(self, device_numbers: Iterable[str], sys: str) -> None:
        """Start tracing devices (`major:minor`); AbsentError if the kernel or the user's rights don't allow it."""
        root = _find_tracefs(sys)
        _remove_leftovers(f"{root}/instances")
        self._folder = f"{root}/instances/{_PREFIX}{os.getpid()}"
        try:
            os.mkdir(self._folder)
            self._begin(" || ".join(f"dev == {_kernel_number(number)}" for number in device_numbers))
        except OSError as error:
            self.close()
            raise AbsentError(f"telemetry.block_trace: {error.filename}: {error.strerror}") from error
        self._partial_line = b""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that have arrived since the last call."""
        while True:
            try:
                chunk = os.read(self._pipe, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                return
            *whole, self._partial_line = (self._partial_line + chunk).split(b"\n")
            yield from whole

    def lost_events(self) -> int:
        """Return how many events the kernel dropped because they were not fetched in time."""
        lost = 0
        for cpu in os.listdir(f"{self._folder}/per_cpu"):
            with open(f"{self._folder}/per_cpu/{cpu}/stats") as lines:
                lost += sum(int(line.split()[-1]) for line in lines if line.startswith(("overrun:", "dropped events:")))
        return lost

    def close(self) -> None:
        """Stop tracing and remove the instance."""
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._pipe)
        with contextlib.suppress(OSError):
            self._set("tracing_on", "0")
            os.rmdir(self._folder)

    def _begin(self, condition: str) -> None:
        self._set("trace_clock", "mono")
        self._set("options/irq-info", "0")
        self._set("buffer_size_kb", str(_BUFFER_KIB_PER_CPU))
        for event in _EVENTS:
            self._set(f"events/block/{event}/filter", condition)
            self._set(f"events/block/{event}/enable", "1")
        self._pipe = os.open(f"{self._folder}/trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _set(self, name: str, value: str) -> None:
        with open(f"{self._folder}/{name}", "w") as out:
            out.write(value)


def _find_tracefs(sys: str) -> str:
    """Return the mount point of tracefs; mount it, visible to this process alone, if it is not mounted."""
    root = f"{sys}/kernel/tracing"
    if not os.path.isdir(f"{root}/instances"):
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        if done or libc.mount(b"tracefs", root.encode(), b"tracefs", 0, None):
            raise AbsentError(f"telemetry.block_trace: tracefs can't be mounted: {os.strerror(ctypes.get_errno())}")
    return root


def _remove_leftovers(instances: str) -> None:
    """Remove the instances that killed recorders left behind."""
    for name in os.listdir(instances):
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{name.removeprefix(_PREFIX)}"):
            with contextlib.suppress(OSError):
                os.rmdir(f"{instances}/{name}")


def _kernel_number(number: str) -> int:
    """Return the kernel's internal device number (dev_t: 12 bits major, 20 bits minor), which event filters use."""
    major, minor = map(int, number.split(":"))
    return major << 20 | minor
