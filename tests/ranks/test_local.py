from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DlemuError
from dlemu.ranks import Comm, PeerLostError
from dlemu.ranks.comm import PART_BYTES, Connection, Frame
from tests.ranks.many_ranks import comms, in_threads

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(INT64, min_size=2, max_size=2), min_size=1, max_size=9))
def test_meeting_returns_the_maximum_to_all(values: list[list[int]]) -> None:
    def work(comm: Comm) -> list[int]:
        return [comm.all_reduce_max(value) for value in values[comm.rank]]

    expected = [max(column) for column in zip(*values, strict=True)]
    assert in_threads(len(values), work) == [expected] * len(values)


@pytest.mark.parametrize("size", [1, 2, 3, 18])
def test_gather_is_in_rank_order_and_broadcast_is_rank_0s(size: int) -> None:
    def work(comm: Comm) -> tuple[list[int] | None, str]:
        return comm.gather(comm.rank**2), comm.broadcast(f"from {comm.rank}")

    expected = [([rank**2 for rank in range(size)] if top == 0 else None, "from 0") for top in range(size)]
    assert in_threads(size, work) == expected


@pytest.mark.parametrize("size", [0, 1, PART_BYTES // 8, PART_BYTES // 8 + 1, 400_000])
def test_arrays_of_any_size_come_whole(size: int) -> None:
    def work(comm: Comm) -> bool:
        parts = comm.gather(np.full(size, comm.rank, dtype=np.int64))
        whole = comm.broadcast(None if parts is None else np.stack(parts))
        return bool(whole.shape == (4, size) and (whole == np.arange(4)[:, None]).all())

    assert in_threads(4, work) == [True] * 4


def test_alone_nothing_is_sent_or_copied() -> None:
    comm = Comm()
    value = object()  # cannot be pickled in any useful way
    assert comm.gather(value) == [value]
    assert comm.broadcast(value) is value
    assert comm.all_reduce_max(5) == 5
    assert comm.synchronise_clocks() == (0,)
    assert comm.hosts == (socket.gethostname(),)
    comm.close()


@pytest.mark.parametrize("gone", [0, 1, 7, 17])
def test_every_rank_learns_that_one_is_gone(gone: int) -> None:
    def work(comm: Comm) -> str:
        comm.all_reduce_max(0)
        if comm.rank != gone:
            comm.all_reduce_max(1)
        return "gone"

    found = in_threads(18, work, timeout_seconds=600.0)
    assert found[gone] == "gone"
    assert {type(error) for rank, error in enumerate(found) if rank != gone} == {PeerLostError}
    assert f"rank {gone} ended without a message" in map(str, found)


def test_ranks_out_of_step_are_told() -> None:
    def work(comm: Comm) -> None:
        if comm.rank == 0:
            comm.all_reduce_max(0)
        else:
            comm.gather(0)

    first, second = in_threads(2, work)
    assert isinstance(first, DlemuError)
    assert str(first).startswith("rank 1 is at the gather where this rank is at the barrier")
    assert second is None or isinstance(second, PeerLostError)


def test_a_signal_handler_may_raise_out_of_a_wait() -> None:
    def give_up(signal_number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    comm, other = comms(2)
    with _alarm(give_up), pytest.raises(KeyboardInterrupt):
        comm.gather(None)  # rank 1 never gathers
    comm.close()
    with pytest.raises(PeerLostError, match="rank 0 ended without a message"):
        other.broadcast(None)
    other.close()


@contextlib.contextmanager
def _alarm(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("size", [2, 18, 64, 256])
def test_ranks_meet_in_as_many_hops_as_the_tree_is_deep(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = list[Frame](), Connection.send

    def counted(link: Connection, frame: Frame, content: int | bytes | bytearray) -> None:
        sent.append(frame)
        send(link, frame, content)

    monkeypatch.setattr(Connection, "send", counted)
    assert in_threads(size, lambda comm: comm.all_reduce_max(comm.rank)) == [size - 1] * size
    assert len(sent) == 2 * (size - 1), "one frame each way for each rank but the first"
    tree = comms(size)

    def hops(rank: int) -> int:
        above = tree[rank].parent
        return 0 if above is None else 1 + hops(int(above._peer.removeprefix("rank ")))

    assert [hops(rank) for rank in range(size)] == [(rank + 1).bit_length() - 1 for rank in range(size)]
    for comm in tree:
        comm.close()
