"""What crosses hosts, with threads as hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

from datagen.errors import DlemuError, UserError
from dlemu.ranks import PeerLostError
from dlemu.ranks.failure import Failure, describe
from dlemu.ranks.launcher import Bytes, IsDone, LauncherProcess, Numbers
from dlemu.ranks.messages import encode
from tests.ranks.many_ranks import PATIENCE_SECONDS


class Wire:
    def __init__(self, nodes: int) -> None:
        self.meeting = threading.Barrier(nodes)
        self.slots: list[Any] = [None] * nodes
        self.failure = b""


class ThreadLeaders(LauncherProcess):
    """Leaders in threads; one that is `gone` has not come to the present call."""

    errors = threading.BrokenBarrierError

    def __init__(self, wire: Wire, node: int, timeout_seconds: float = 60.0) -> None:
        super().__init__(node, len(wire.slots), [node], "", timeout_seconds)
        self.node, self.nodes = node, len(wire.slots)
        self._wire = wire
        self.gone = False

    def connect(self, led_ranks: Sequence[int]) -> None:
        pass

    def finish(self) -> None:
        pass

    def report_failure(self, failure: Failure) -> None:
        self._wire.failure = encode(failure)

    def _read_failure(self) -> bytes:
        return self._wire.failure

    def _all(self, data: Any, out: Any, made: Callable[[list[Any]], Any]) -> IsDone:
        if self.gone:
            return lambda: False
        self._wire.slots[self.node] = data.copy()
        self._wire.meeting.wait(PATIENCE_SECONDS)
        out[:] = made(self._wire.slots)
        self._wire.meeting.wait(PATIENCE_SECONDS)
        return lambda: True

    def _begin_maximum(self, numbers: Numbers, highest: Numbers) -> IsDone:
        return self._all(numbers, highest, lambda slots: np.max(slots, axis=0))

    def _begin_broadcast(self, data: Bytes) -> IsDone:
        return self._all(data, data, lambda slots: slots[0])

    def _begin_gather(self, data: Bytes, received: Bytes) -> IsDone:
        return self._all(data, received, lambda slots: slots if self.node == 0 else received)


def together(nodes: int, work: Callable[[ThreadLeaders], Any]) -> list[Any]:
    wire = Wire(nodes)

    def run(node: int) -> Any:
        try:
            return work(ThreadLeaders(wire, node))
        except DlemuError as error:
            wire.meeting.abort()
            return error

    with ThreadPoolExecutor(nodes) as pool:
        return list(pool.map(run, range(nodes)))


def test_payloads_of_any_length_cross_hosts() -> None:
    def work(leaders: ThreadLeaders) -> Any:
        payload = bytes([leaders.node]) * (10 * leaders.node)
        return leaders.gather(payload), leaders.broadcast(b"from 0" * 5 if leaders.node == 0 else b"")

    with mock.patch("dlemu.ranks.launcher._CHUNK_BYTES", 7):
        found = together(3, work)
    assert found[0] == ([b"", b"\1" * 10, b"\2" * 20], b"from 0" * 5)
    assert found[1:] == [([], b"from 0" * 5)] * 2
    assert together(3, lambda leaders: leaders.all_values((leaders.node, "x"))) == [[(0, "x"), (1, "x"), (2, "x")]] * 3


def test_hosts_agree_on_the_offsets_of_their_clocks() -> None:
    def work(leaders: ThreadLeaders) -> tuple[tuple[int, ...], int]:
        return leaders.clock_offsets(), leaders.all_reduce_max(10**18 + leaders.node)

    found = together(3, work)
    offsets = found[0][0]
    assert [same for same, _ in found] == [offsets] * 3
    assert offsets[0] == 0
    assert all(abs(offset) < 10**9 for offset in offsets), "threads have one clock"
    assert {highest + offset for (_, highest), offset in zip(found, offsets, strict=True)} == {
        max(10**18 + node + offsets[node] for node in range(3))
    }


def test_a_host_that_fails_says_why_to_all() -> None:
    def work(leaders: ThreadLeaders) -> Any:
        if leaders.node == 2:
            leaders.report_failure(describe(7, UserError("the disk is full")))
            return None
        leaders.gone = True
        return leaders.all_reduce_max(0)

    ends = together(3, work)
    assert [(str(end), end.exit_status) for end in ends[:2]] == [("the disk is full", 2)] * 2


def test_a_host_that_stays_away_is_named_in_time() -> None:
    leaders = ThreadLeaders(Wire(2), 0, timeout_seconds=0.1)
    leaders.peers_name = "host b (ranks 1, 2)"
    leaders.gone = True
    with pytest.raises(PeerLostError, match=r"^host b \(ranks 1, 2\) did not arrive within 0.1 s$"):
        leaders.all_reduce_max(0)
    began = time.monotonic()
    leaders.pause = lambda seconds: 1 / 0  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        leaders.all_reduce_max(0)
    assert time.monotonic() - began < 10
