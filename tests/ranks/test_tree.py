"""The tree of a host's ranks: their places in it, and how many hops they need to meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.machine.clock import FakeClock
from dlemu.ranks.tree import children_of, height, parent_of
from tests.ranks.memory_links import Pipe, TimedLink, run


@given(st.integers(1, 300))
def test_every_rank_has_one_place_in_the_tree(size: int) -> None:
    below = [child for rank in range(size) for child in children_of(rank, size)]
    assert sorted(below) == list(range(1, size))
    assert all(child in children_of(parent_of(child), size) for child in below)
    assert height(0, size) == size.bit_length() - 1


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
