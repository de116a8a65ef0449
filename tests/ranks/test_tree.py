"""How many hops the ranks of a host need to meet."""

from __future__ import annotations

import pytest

from dlemu.machine.clock import FakeClock
from tests.ranks.memory_links import Pipe, TimedLink, run

MANY = 1024
"""Ranks of no host that there is: they meet as threads, by links whose hops are counted."""


@pytest.mark.parametrize("size", [2, 18, 64, 256, MANY])
def test_ranks_meet_in_as_many_hops_as_the_tree_is_deep(size: int) -> None:
    clocks = [FakeClock(0) for _ in range(size)]
    links: list[TimedLink] = []

    def linked(incoming: Pipe, outgoing: Pipe, rank: int) -> TimedLink:
        links.append(TimedLink(incoming, outgoing, clocks[rank], hop_ns=1))
        return links[-1]

    highest = run(size, lambda comm, rank: comm.all_reduce_max(rank), linked)
    assert highest == [size - 1] * size
    assert max(clock.time_ns for clock in clocks) == 2 * (size.bit_length() - 1), "the way up and the way down"
    assert sum(link.sent for link in links) == 2 * (size - 1), "one frame each way for each rank but the first"
