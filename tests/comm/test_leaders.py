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
from dlemu.comm import PeerLostError
from dlemu.comm.failure import Failure, describe
from dlemu.comm.leaders import Bytes, Leaders, Numbers, Seal
from tests.comm.many_ranks import PATIENCE_SECONDS


class Wire:
    """What all leaders share."""

    def __init__(self, nodes: int) -> None:
        self.meeting = threading.Barrier(nodes)
        self.slots: list[Any] = [None] * nodes
        self.failure = ""


class ThreadLeaders(Leaders):
    """Leaders in threads; one that is `gone` has not come to the present call."""

    def __init__(self, wire: Wire, node: int, secret: bytes = b"secret", timeout_seconds: float = 60.0) -> None:
        super().__init__(node, len(wire.slots), secret, timeout_seconds)
        self._wire = wire
        self.gone = False

    def leave(self, failure: Failure) -> None:
        self._wire.failure = failure.to_json()

    def _read_failure(self) -> str:
        return self._wire.failure

    def _all(self, data: Any) -> list[Any]:
        self._wait(lambda: not self.gone, data)
        self._wire.slots[self.node] = data.copy()
        self._wire.meeting.wait(PATIENCE_SECONDS)
        found = list(self._wire.slots)
        self._wire.meeting.wait(PATIENCE_SECONDS)
        return found

    def _reduce(self, numbers: Numbers, more_seconds: float) -> None:
        numbers[:] = np.max(self._all(numbers), axis=0)

    def _spread(self, data: Bytes) -> None:
        data[:] = self._all(data)[0]

    def _collect(self, data: Bytes) -> Sequence[Bytes]:
        return self._all(data) if self.node == 0 else self._all(data)[:0]

    def _ping_all(self, offsets_ns: Numbers) -> None:
        raise NotImplementedError

    _send = _receive = _ping_all  # type: ignore[assignment]


def together(
    nodes: int, work: Callable[[ThreadLeaders], Any], secrets: Sequence[bytes] = (b"secret",) * 9
) -> list[Any]:
    """Return what each leader's `work` returned or raised."""
    wire = Wire(nodes)

    def run(node: int) -> Any:
        try:
            return work(ThreadLeaders(wire, node, secrets[node]))
        except DlemuError as error:
            wire.meeting.abort()
            return error
        except threading.BrokenBarrierError:
            return None

    with ThreadPoolExecutor(nodes) as pool:
        return list(pool.map(run, range(nodes)))


def test_payloads_of_any_length_cross_hosts() -> None:
    def work(leaders: ThreadLeaders) -> Any:
        payload = bytes([leaders.node]) * (10 * leaders.node)
        return leaders.gather(payload), leaders.broadcast(b"from 0" * 5 if leaders.node == 0 else b"")

    with mock.patch("dlemu.comm.leaders._PIECE_BYTES", 7):
        found = together(3, work)
    assert found[0] == ([b"", b"\1" * 10, b"\2" * 20], b"from 0" * 5)
    assert found[1:] == [([], b"from 0" * 5)] * 2
    assert together(3, lambda leaders: leaders.all_values((leaders.node, "x"))) == [[(0, "x"), (1, "x"), (2, "x")]] * 3


def test_what_no_leader_of_this_run_sent_is_never_unpickled() -> None:
    ends = together(2, lambda leaders: leaders.all_values("x"), [b"right", b"wrong"])
    assert "not from this run" in str(ends[0])
    seal = Seal(b"secret")
    seal.next_call()
    old = seal.closed(1, b"payload")
    assert seal.opened(1, old, "host b") == b"payload"
    for place, sealed in ((2, old), (1, old[:-1] + b"?"), (1, b"")):
        with pytest.raises(DlemuError, match="in place of one from host b is not from this run"):
            seal.opened(place, sealed, "host b")
    seal.next_call()
    with pytest.raises(DlemuError, match="not from this run"):
        seal.opened(1, old, "host b")


def test_a_host_that_fails_says_why_to_all() -> None:
    def work(leaders: ThreadLeaders) -> Any:
        if leaders.node == 2:
            leaders.leave(describe(7, UserError("the disk is full")))
            return None
        leaders.gone = True
        return leaders.all_reduce_max(0)

    ends = together(3, work)
    assert [(str(end), end.exit_status) for end in ends[:2]] == [("the disk is full", 2)] * 2


def test_a_host_that_stays_away_is_named_in_time() -> None:
    leaders = ThreadLeaders(Wire(2), 0, timeout_seconds=0.1)
    leaders.set_names(["host a (rank 0)", "host b (ranks 1, 2)"])
    leaders.gone = True
    with pytest.raises(PeerLostError, match=r"^host b \(ranks 1, 2\) did not arrive within 0.1 s$"):
        leaders.all_reduce_max(0)
    began = time.monotonic()
    with leaders.pausing(lambda seconds: 1 / 0), pytest.raises(ZeroDivisionError):  # type: ignore[arg-type]
        leaders.all_reduce_max(0)
    assert time.monotonic() - began < 10
