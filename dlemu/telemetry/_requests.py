"""From traced events of block requests to queue depth over time, latencies and sizes. Pure: tests need no kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dlemu.telemetry.probe_base import Bin

_OPERATIONS = {b"R": "read", b"W": "write"}
_BINS_AN_OCTAVE = 8
_SECTOR_KIB = 0.5


@dataclass
class _Queue:
    """One device's requests of one kind."""

    depth: int = 0
    depth_us: int = 0
    """Depth x time since the last mean was taken."""
    at_depth_us: Counter[int] = field(default_factory=Counter)
    latencies: Counter[int] = field(default_factory=Counter)
    sectors: Counter[int] = field(default_factory=Counter)


class Requests:
    """Follows the requests of some devices from issue to completion."""

    def __init__(self, devices: dict[bytes, str]) -> None:
        """`devices`: name by the number that events state, such as b"7,0"."""
        self._queues = {(number, letter): _Queue() for number in devices for letter in _OPERATIONS}
        self._names = devices
        self._issued: dict[tuple[bytes, bytes, bytes], tuple[int, int]] = {}
        self._now_us = self._mean_from_us = 0
        self._counting = False

    def count(self, counting: bool, now_us: int) -> None:
        """Begin or end what the histograms are about."""
        self._pass(now_us)
        self._counting = counting

    def add(self, lines: Iterable[bytes]) -> None:
        """Take events in the order of time."""
        for line in lines:
            found = _parse(line)
            if found is not None:
                self._event(*found)

    def mean_depths(self, now_us: int) -> Iterator[tuple[str, str, float]]:
        """Yield each device, operation and mean depth since the last call."""
        self._pass(now_us)
        passed_us = now_us - self._mean_from_us
        for (number, letter), queue in self._queues.items():
            if self._mean_from_us and passed_us > 0:
                yield self._names[number], _OPERATIONS[letter], queue.depth_us / passed_us
            queue.depth_us = 0
        self._mean_from_us = now_us

    def bins(self) -> Iterator[Bin]:
        """Yield all histograms of what was counted."""
        for (number, letter), queue in self._queues.items():
            head = self._names[number], _OPERATIONS[letter]
            for depth, us in sorted(queue.at_depth_us.items()):
                yield Bin(*head, "queue_depth_seconds", depth, depth + 1, us / 1e6)
            for step, requests in sorted(queue.latencies.items()):
                yield Bin(*head, "latency_us", _edge(step), _edge(step + 1), requests)
            for sectors, requests in sorted(queue.sectors.items()):
                low = sectors * _SECTOR_KIB
                yield Bin(*head, "request_kib", low, low + _SECTOR_KIB, requests)

    def _event(self, now_us: int, kind: int, number: bytes, letter: bytes, sector: bytes, sectors: int) -> None:
        queue = self._queues.get((number, letter))
        if queue is None:
            return
        self._pass(now_us)
        key = number, letter, sector
        if kind == _ISSUE:
            queue.depth += key not in self._issued  # a request that is issued again began with the last issue
            self._issued[key] = now_us, sectors
            return
        issued = self._issued.pop(key, None)
        if issued is None:  # it began before the trace did
            return
        queue.depth -= 1
        if kind == _COMPLETE and self._counting:
            queue.latencies[_step(now_us - issued[0])] += 1
            queue.sectors[issued[1]] += 1

    def _pass(self, now_us: int) -> None:
        """Let time pass; events of different CPUs may come a little out of order."""
        passed_us = now_us - self._now_us if self._now_us else 0
        if passed_us > 0:
            for queue in self._queues.values():
                queue.depth_us += queue.depth * passed_us
                if self._counting:
                    queue.at_depth_us[queue.depth] += passed_us
        self._now_us = max(self._now_us, now_us)


_ISSUE, _COMPLETE, _REQUEUE = b"icr"
_EVENT = b": block_rq_"
_KINDS = {b"issue:": _ISSUE, b"complete:": _COMPLETE, b"requeue:": _REQUEUE}


def _parse(line: bytes) -> tuple[int, int, bytes, bytes, bytes, int] | None:
    """Return time (us), kind, device, R or W, sector and sectors; None for what is neither a read nor a write.

    A line is `COMM-PID [CPU] 12.345678: block_rq_issue: 7,0 RA 4096 () 8 + 8 ...`; only an issue states bytes.
    """
    head, event, tail = line.partition(_EVENT)
    if not event:
        return None
    words = tail.partition(b" + ")
    fields = words[0].split()
    kind, number, flags, sector = _KINDS.get(fields[0], 0), fields[1], fields[2], fields[-1]
    letter = b"R" if b"R" in flags else b"W" if b"W" in flags else b""
    if not kind or not letter:
        return None
    seconds, _, micros = head.rsplit(None, 1)[-1].partition(b".")
    return int(seconds) * 1_000_000 + int(micros), kind, number, letter, sector, int(words[2].split(None, 1)[0])


def _step(latency_us: int) -> int:
    """Return the bin of a latency: eight to an octave, from 1 us."""
    return int(math.log2(max(1, latency_us)) * _BINS_AN_OCTAVE + 1e-9)


def _edge(step: int) -> float:
    return float(2 ** (step / _BINS_AN_OCTAVE))
