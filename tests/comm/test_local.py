from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DlemuError
from dlemu.comm import LocalComm, PeerLostError
from dlemu.comm.local import Connection, address
from dlemu.comm.tree import Frame
from tests.comm.many_ranks import in_threads, lives, wait_until

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(INT64, min_size=2, max_size=2), min_size=1, max_size=9))
def test_meeting_returns_the_maximum_to_all(values: list[list[int]]) -> None:
    def work(comm: LocalComm) -> list[int]:
        return [comm.all_reduce_max(value) for value in values[comm.rank]]

    expected = [max(column) for column in zip(*values, strict=True)]
    assert in_threads(len(values), work) == [expected] * len(values)


@pytest.mark.parametrize("size", [1, 2, 3, 18])
def test_gather_is_in_rank_order_and_broadcast_is_rank_0s(size: int) -> None:
    def work(comm: LocalComm) -> tuple[list[int] | None, str]:
        return comm.gather(comm.rank**2), comm.broadcast(f"from {comm.rank}")

    expected = [([rank**2 for rank in range(size)] if top == 0 else None, "from 0") for top in range(size)]
    assert in_threads(size, work) == expected


def test_gather_and_broadcast_carry_megabytes() -> None:
    def work(comm: LocalComm) -> bool:
        parts = comm.gather(np.full(400_000, comm.rank, dtype=np.int64))
        whole = comm.broadcast(None if parts is None else np.stack(parts))
        return bool(whole.shape == (4, 400_000) and (whole == np.arange(4)[:, None]).all())

    assert in_threads(4, work) == [True] * 4


def test_alone_nothing_is_sent_or_copied() -> None:
    comm = LocalComm()
    value = object()  # cannot be pickled in any useful way
    assert comm.gather(value) == [value]
    assert comm.broadcast(value) is value
    assert comm.all_reduce_max(5) == 5
    assert comm.synchronise_clocks() == (0,)
    assert comm.hosts == (socket.gethostname(),)
    comm.close()


@pytest.mark.parametrize("gone", [0, 1, 7, 17])
def test_every_rank_learns_who_is_gone(gone: int) -> None:
    def work(comm: LocalComm) -> str:
        comm.all_reduce_max(0)
        if comm.rank == gone:
            return "gone"
        with pytest.raises(PeerLostError) as caught:
            comm.all_reduce_max(1)
        return str(caught.value)

    messages = in_threads(18, work, timeout_seconds=600.0)
    assert [message for rank, message in enumerate(messages) if rank != gone] == [
        f"rank {gone} ended without a message"
    ] * 17


def test_a_rank_that_never_starts_is_named() -> None:
    with pytest.raises(PeerLostError, match=r"^rank 1 and rank 2 did not arrive within 0.1 s$"):
        LocalComm(0, 3, token=secrets.token_hex(8), timeout_seconds=0.1)
    with pytest.raises(PeerLostError, match=r"^rank 0 did not arrive within 0.1 s$"):
        LocalComm(1, 2, token=secrets.token_hex(8), timeout_seconds=0.1)


def test_a_rank_that_is_started_twice_is_refused() -> None:
    token = secrets.token_hex(8)
    first = threading.Thread(target=lambda: _expect_loss(token))
    first.start()
    assert wait_until(lambda: _listens(token, 0))
    with pytest.raises(DlemuError, match="started twice"):
        LocalComm(0, 2, token=token, timeout_seconds=1.0)
    first.join()


def _expect_loss(token: str) -> None:
    with pytest.raises(PeerLostError):
        LocalComm(0, 2, token=token, timeout_seconds=3.0)


def test_ranks_out_of_step_are_told() -> None:
    def work(comm: LocalComm) -> None:
        if comm.rank == 0:
            comm.all_reduce_max(0)
        else:
            comm.gather(0)

    first, second = in_threads(2, work)
    assert isinstance(first, DlemuError)
    assert str(first).startswith("rank 1 is at the gather where this rank is at the barrier")
    assert second is None or isinstance(second, PeerLostError)


def test_strangers_are_turned_away() -> None:
    token = secrets.token_hex(8)
    results: list[int] = []

    def rank_0() -> None:
        comm = LocalComm(0, 2, token=token, timeout_seconds=20.0)
        results.append(comm.all_reduce_max(1))
        comm.close()

    thread = threading.Thread(target=rank_0)
    thread.start()
    assert wait_until(lambda: _listens(token, 0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as liar, socket.socket(socket.AF_UNIX) as mute:
        liar.connect(address(token, 0))
        liar.sendall(b"let me in" * 10)
        mute.connect(address(token, 0))
        comm = LocalComm(1, 2, token=token, timeout_seconds=20.0)
        assert comm.all_reduce_max(2) == 2
        comm.close()
        thread.join()
    assert results == [2]


def test_a_signal_handler_may_raise_out_of_a_wait() -> None:
    token = secrets.token_hex(8)
    messages: list[str] = []

    def rank_1() -> None:
        comm = LocalComm(1, 2, token=token)
        with pytest.raises(PeerLostError) as caught:
            comm.broadcast(None)
        messages.append(str(caught.value))
        comm.close()

    def give_up(signal_number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=rank_1)
    thread.start()
    comm = LocalComm(0, 2, token=token)
    with _alarm(give_up), pytest.raises(KeyboardInterrupt):
        comm.gather(None)  # rank 1 never gathers
    comm.close()
    thread.join()
    assert messages == ["rank 0 left a collective call halfway"]


@contextlib.contextmanager
def _alarm(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    yield
    signal.signal(signal.SIGALRM, before)


def test_a_ranks_end_is_seen_although_its_forked_worker_lives_on() -> None:
    token = secrets.token_hex(8)
    reader, writer = os.pipe()
    rank = os.fork()
    if rank == 0:
        _be_rank_1_with_a_worker(token, writer)
    comm = LocalComm(0, 2, token=token, timeout_seconds=600.0)
    comm.all_reduce_max(0)
    with pytest.raises(PeerLostError, match="rank 1 ended without a message"):
        comm.all_reduce_max(1)
    worker = int(os.read(reader, 100))
    assert lives(worker)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(rank, 0)
    comm.close()
    os.close(reader)
    os.close(writer)


def _be_rank_1_with_a_worker(token: str, writer: int) -> None:
    try:
        comm = LocalComm(1, 2, token=token)
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        os.write(writer, str(worker).encode())
        comm.all_reduce_max(0)
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


def _listens(token: str, rank: int) -> bool:
    with open("/proc/net/unix") as table:
        return address(token, rank).replace("\0", "@") in table.read()


def test_no_notice_is_sent_where_bytes_are_expected() -> None:
    """The peer would take it for them."""
    ours, theirs = socket.socketpair()
    link = Connection(ours, "rank 1", 5, 0)
    link.send(Frame.PART, 3)
    link.notify("rank 2 is gone")
    link.close()
    assert len(theirs.recv(100)) == 16, "the head alone"
    assert theirs.recv(100) == b""
    theirs.close()
    ours, theirs = socket.socketpair()
    link, peer = Connection(ours, "rank 1", 5, 0), Connection(theirs, "rank 0", 5, 0)
    link.send(Frame.PART, 3)
    link.send_bytes(b"abc")
    link.notify("rank 2 is gone")
    assert peer.receive_bytes(peer.receive(Frame.PART), Frame.PART) == b"abc"
    with pytest.raises(PeerLostError, match="rank 2 is gone"):
        peer.receive(Frame.PART)
    link.close()
    peer.close()
