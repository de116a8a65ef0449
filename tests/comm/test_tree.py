"""The tree's collectives over links in memory: what ranks say to each other does not depend on sockets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.comm import PeerLostError
from dlemu.comm.tree import PART_BYTES, Frame, LocalTree, children_of, height, parent_of
from tests.comm.memory_links import MemoryLink, Pipe, run


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


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 17])
def test_long_payloads_come_whole(size: int) -> None:
    """A notice may come between two parts: none is longer than the time that a neighbour waits without a word."""
    payload = bytes(range(251)) * (size // 251 + 1)

    def work(tree: LocalTree, rank: int) -> tuple[bool, list[bytes | bytearray] | None]:
        return tree.broadcast(payload[:size]) == payload[:size], tree.gather(payload[rank : size + rank])

    ends = run(4, work)
    assert [same for same, _ in ends] == [True] * 4
    assert ends[0][1] == [payload[rank : size + rank] for rank in range(4)]
    assert [parts for _, parts in ends[1:]] == [None] * 3


class Recorded:
    """A link whose neighbour always answers at once with 5; it keeps what it was asked."""

    def __init__(self, failing: BaseException | None = None) -> None:
        self.failing = failing
        self.since: list[float | None] = []
        self.sent: list[tuple[Frame, int]] = []
        self.parts: list[int] = []
        self.told: list[str] = []
        self.closed = 0
        self.timeouts: list[float] = []

    def send(self, frame: Frame, number: int) -> None:
        self.sent.append((frame, number))

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self.parts.append(len(data))

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        if self.failing is not None:
            raise self.failing
        self.since.append(started_seconds)
        return 5

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        return bytearray(num_bytes)

    def notify(self, message: str) -> None:
        self.told.append(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        self.timeouts.append(timeout_seconds)

    def close(self) -> None:
        self.closed += 1


def between(**of_one: BaseException) -> tuple[LocalTree, Recorded, Recorded, Recorded]:
    """Rank 1 of seven, between rank 0 and ranks 3 and 4."""
    tree = LocalTree(1, 7, names=[10, 11, 12, 13, 14, 15, 16])
    above, *below = (Recorded(of_one.get(name)) for name in ("parent", "first", "second"))
    tree.parent = above
    tree.children = dict(zip((3, 4), below, strict=True))
    return tree, above, below[0], below[1]


@pytest.mark.parametrize(
    ("cause", "message"),
    [(PeerLostError("rank 13 is gone"), "rank 13 is gone"), (KeyboardInterrupt(), "rank 11 left a collective call")],
)
def test_whoever_leaves_a_call_tells_the_neighbours_why_once(cause: BaseException, message: str) -> None:
    tree, above, first, second = between(first=cause)
    with pytest.raises(type(cause)):
        tree.reduce_max(1)
    assert tree.broken is not None
    assert tree.broken.startswith(message)
    assert above.told == first.told == second.told == [tree.broken]
    tree.announce_loss("something else, later")
    assert above.told == [tree.broken]
    for call in (lambda: tree.reduce_max(1), lambda: tree.gather(b""), lambda: tree.broadcast(b"")):
        with pytest.raises(PeerLostError, match=message):
            call()
    assert above.sent == []


def test_a_closed_tree_has_let_go_of_its_neighbours() -> None:
    tree, *links = between()
    tree.set_timeout(7.5)
    assert [link.timeouts for link in links] == [[7.5]] * 3
    tree.close()
    tree.close()
    assert [link.closed for link in links] == [1, 1, 1]
    with pytest.raises(PeerLostError, match="this rank has closed its communicator"):
        tree.reduce_max(1)
    lost, *_ = between()
    lost.announce_loss("rank 13 is gone")
    lost.close()
    with pytest.raises(PeerLostError, match="rank 13 is gone"):
        lost.reduce_max(1)


def test_messages_call_ranks_by_the_names_that_they_have_in_the_run() -> None:
    assert LocalTree(0, 3).name(2) == "rank 2"
    assert between()[0].name(2) == "rank 12"


MANY = 1024
"""Ranks of no host that there is: they meet as threads, by links whose hops are counted."""


class CountedLink(MemoryLink):
    """A link of which each frame arrives one hop after it was sent, by the clock of the rank that has the link."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, clock: list[int]) -> None:
        super().__init__(incoming, outgoing)
        self._clock, self.sent = clock, 0

    def send(self, frame: Frame, number: int) -> None:
        self.sent += 1
        super().send(frame, (self._clock[0] + 1) << 32 | number)

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        stamped = super().receive(frame, started_seconds)
        self._clock[0] = max(self._clock[0], stamped >> 32)
        return stamped & 0xFFFFFFFF


@pytest.mark.parametrize("size", [2, 18, 64, 256, MANY])
def test_ranks_meet_in_as_many_hops_as_the_tree_is_deep(size: int) -> None:
    clocks = [[0] for _ in range(size)]
    links: list[CountedLink] = []

    def linked(incoming: Pipe, outgoing: Pipe, rank: int) -> CountedLink:
        links.append(CountedLink(incoming, outgoing, clocks[rank]))
        return links[-1]

    highest = run(size, lambda tree, rank: tree.broadcast_number(tree.reduce_max(rank)), linked)
    assert highest == [size - 1] * size
    assert max(clock for (clock,) in clocks) == 2 * height(0, size), "the way up and the way down"
    assert sum(link.sent for link in links) == 2 * (size - 1), "one frame each way for each rank but the first"


@pytest.mark.parametrize("lost", [0, 511, MANY - 1])
def test_of_very_many_ranks_too_a_loss_reaches_all_with_one_message(lost: int) -> None:
    def work(tree: LocalTree, rank: int) -> str | None:
        if rank == lost:
            tree.announce_loss("rank x failed")
        with pytest.raises(PeerLostError):
            tree.broadcast_number(tree.reduce_max(0))
        return tree.broken

    assert run(MANY, work) == ["rank x failed"] * MANY
