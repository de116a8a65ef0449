"""The tree's collectives over links in memory: what ranks say to each other does not depend on sockets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.machine.clock import FakeClock
from dlemu.ranks.tree import PART_BYTES, LocalTree, children_of, height, parent_of
from tests.ranks.memory_links import Pipe, TimedLink, run


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_all_ranks_get_the_same_of_each_collective(values: list[int]) -> None:
    def work(tree: LocalTree, rank: int) -> tuple[int, list[bytes] | None, bytes]:
        highest = tree.broadcast_number(tree.reduce_max(values[rank]))
        return highest, tree.gather(bytes([rank]) * rank), bytes(tree.broadcast(b"%d" % rank))

    parts = [bytes([rank]) * rank for rank in range(len(values))]
    expected = [(max(values), parts if rank == 0 else None, b"0") for rank in range(len(values))]
    assert run(len(values), work) == expected


@given(st.integers(1, 300))
def test_every_rank_has_one_place_in_the_tree(size: int) -> None:
    below = [child for rank in range(size) for child in children_of(rank, size)]
    assert sorted(below) == list(range(1, size))
    assert all(child in children_of(parent_of(child), size) for child in below)
    assert height(0, size) == size.bit_length() - 1


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 17])
def test_long_payloads_come_whole(size: int) -> None:
    payload = bytes(range(251)) * (size // 251 + 1)

    def work(tree: LocalTree, rank: int) -> tuple[bool, list[bytes] | None]:
        return tree.broadcast(payload[:size]) == payload[:size], tree.gather(payload[rank : size + rank])

    ends = run(4, work)
    assert [same for same, _ in ends] == [True] * 4
    assert ends[0][1] == [payload[rank : size + rank] for rank in range(4)]
    assert [parts for _, parts in ends[1:]] == [None] * 3


MANY = 1024
"""Ranks of no host that there is: they meet as threads, by links whose hops are counted."""


@pytest.mark.parametrize("size", [2, 18, 64, 256, MANY])
def test_ranks_meet_in_as_many_hops_as_the_tree_is_deep(size: int) -> None:
    clocks = [FakeClock(0) for _ in range(size)]
    links: list[TimedLink] = []

    def linked(incoming: Pipe, outgoing: Pipe, rank: int) -> TimedLink:
        links.append(TimedLink(incoming, outgoing, clocks[rank], hop_ns=1))
        return links[-1]

    highest = run(size, lambda tree, rank: tree.broadcast_number(tree.reduce_max(rank)), linked)
    assert highest == [size - 1] * size
    assert max(clock.time_ns for clock in clocks) == 2 * height(0, size), "the way up and the way down"
    assert sum(link.sent for link in links) == 2 * (size - 1), "one frame each way for each rank but the first"
