"""The tree's collectives over links in memory: what ranks say to each other does not depend on sockets."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.comm import PeerLostError
from dlemu.comm.tree import Frame, Link, LocalTree, children_of, height, parent_of

Result = TypeVar("Result")
Pipe = queue.Queue[tuple[Frame, int] | bytes | str]


class MemoryLink:
    """One end of a link of two queues."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def send(self, frame: Frame, number: int) -> None:
        self._outgoing.put((frame, number))

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self._outgoing.put(bytes(data))

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        item = self._incoming.get(timeout=30)
        if isinstance(item, str):
            raise PeerLostError(item)
        kind, number = item
        assert kind == frame
        assert isinstance(number, int)
        return number

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        item = self._incoming.get(timeout=30)
        assert isinstance(item, bytes)
        assert len(item) == num_bytes
        return bytearray(item)

    def relay_bytes(self, num_bytes: int, frame: Frame, target: Link) -> None:
        target.send_bytes(self.receive_bytes(num_bytes, frame))

    def notify(self, message: str) -> None:
        self._outgoing.put(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


def run(size: int, work: Callable[[LocalTree, int], Result]) -> list[Result]:
    trees = [LocalTree(rank, size) for rank in range(size)]
    for rank in range(1, size):
        up: Pipe = queue.Queue()
        down: Pipe = queue.Queue()
        trees[rank].parent = MemoryLink(down, up)
        trees[parent_of(rank)].children[rank] = MemoryLink(up, down)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, trees, range(size)))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_all_ranks_get_the_same_of_each_collective(values: list[int]) -> None:
    def work(tree: LocalTree, rank: int) -> tuple[int, list[bytes | bytearray] | None, bytes]:
        highest = tree.broadcast_number(tree.reduce_max(values[rank]))
        return highest, tree.gather(bytes([rank]) * rank), bytes(tree.broadcast(b"%d" % rank))

    parts = [bytes([rank]) * rank for rank in range(len(values))]
    expected = [(max(values), parts if rank == 0 else None, b"0") for rank in range(len(values))]
    assert run(len(values), work) == expected


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_loss_reaches_all_with_one_message(lost: int) -> None:
    def work(tree: LocalTree, rank: int) -> str | None:
        if rank == lost:
            tree.announce_loss("rank x failed")
        with pytest.raises(PeerLostError) as caught:
            tree.broadcast_number(tree.reduce_max(0))
        assert tree.broken == str(caught.value)
        return tree.broken

    assert run(5, work) == ["rank x failed"] * 5


@given(st.integers(1, 300))
def test_every_rank_has_one_place_in_the_tree(size: int) -> None:
    below = [child for rank in range(size) for child in children_of(rank, size)]
    assert sorted(below) == list(range(1, size))
    assert all(child in children_of(parent_of(child), size) for child in below)
    assert height(0, size) == size.bit_length() - 1
