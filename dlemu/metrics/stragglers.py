"""Stragglers: ranks, or whole hosts, for which the others waited, with the loss that each caused.

A rank delays a step by what the step would have been shorter without its waiting: its end less the latest end of the
others (docs/metrics.md, section 5). Differences of nominal computation are nobody's delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.au import Rows
from dlemu.metrics.loss import PARTS, Whole, wait_parts

LEAST_PERCENT = 0.5
"""Points of utilisation that an owner must have cost to be named,"""
TIMES_THE_OTHERS = 3
"""and how many times the mean of the others: by chance every rank is the last one now and then."""
_SHOWN_RANGES = 8


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """`rank` is None where all ranks of a host are late together."""

    rank: int | None
    host: str
    loss_percent: float
    """Points of the headline's loss that would not be there had it been as fast as the slowest of the others."""
    steps: int
    """Kept steps that it delayed."""
    where: str
    """Those steps: `epoch 1: 2-7, 9; epoch 2: 3`."""
    mean_delay_ms: float
    mainly: str
    """What its batches were kept by in those steps: one of `PARTS`."""


def find_stragglers(kept: Rows, rank_nodes: Sequence[int], hosts: Sequence[str]) -> list[Straggler]:
    """Return those who cost the kept steps most, worst first. `rank_nodes` is the index in `hosts` of each rank's."""
    if not len(kept):
        return []
    nodes = np.array(rank_nodes or [0] * (int(kept["rank"].max()) + 1))
    late_ranks, delay_ns = _late(kept, kept["rank"])
    ranks = [
        _straggler(kept, delays, delay_ns, rank=owner, host=_name(hosts, int(nodes[owner])))
        for owner, delays in late_ranks
    ]
    if len(set(nodes.tolist())) in (1, len(nodes)):  # a host is all ranks, or one
        return ranks
    late_hosts = _late(kept, nodes[kept["rank"]])
    return [
        *(
            _straggler(kept, delays, late_hosts[1], rank=None, host=_name(hosts, owner))
            for owner, delays in late_hosts[0]
        ),
        *ranks,
    ]


def _late(kept: Rows, owners: NDArray[np.integer]) -> tuple[list[tuple[int, Whole]], Whole]:
    """Return the owners to name, each with the rows in which it was last; and each row's delay of its step."""
    delay_ns, last = _delays(kept, owners)
    count = int(owners.max()) + 1
    caused = np.bincount(owners[last], weights=delay_ns[last] * _peers(kept)[last], minlength=count)
    total_ns = int((kept["wait_ns"] + kept["compute_ns"] + kept["sync_ns"]).sum())
    there = np.unique(owners)
    if len(there) < 2 or not total_ns:
        return [], delay_ns
    others = (caused[there].sum() - caused) / (len(there) - 1)
    named = [
        int(owner)
        for owner in there[np.argsort(-caused[there], kind="stable")]
        if 100 * caused[owner] / total_ns >= LEAST_PERCENT and caused[owner] >= TIMES_THE_OTHERS * others[owner]
    ]
    return [(owner, last[(owners[last] == owner) & (delay_ns[last] > 0)]) for owner in named], delay_ns


def _delays(kept: Rows, owners: NDArray[np.integer]) -> tuple[Whole, Whole]:
    """Return by how much each row delayed its step (0 for all but the last to end), and the last row of each step."""
    ends = kept["wait_ns"] + kept["compute_ns"]
    order = np.lexsort((-ends, kept["step"], kept["block"], kept["epoch"]))
    step = _step_numbers(kept[order])
    begins = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
    last = order[begins]
    is_other = owners[order] != owners[last][step]
    floor = np.maximum.reduceat(np.where(is_other, ends[order], 0), begins)
    longest = np.maximum.reduceat(kept["compute_ns"][order], begins)
    delay_ns = np.zeros(len(kept), np.int64)
    delay_ns[last] = np.maximum(0, ends[last] - np.maximum(floor, longest))
    return delay_ns, last


def _step_numbers(ordered: Rows) -> Whole:
    keys = np.stack([ordered["epoch"], ordered["block"], ordered["step"]])
    return np.append(0, np.cumsum((keys[:, 1:] != keys[:, :-1]).any(axis=0)))


def _peers(kept: Rows) -> Whole:
    """Return for each row how many accelerators its step had."""
    order = np.lexsort((kept["step"], kept["block"], kept["epoch"]))
    step = _step_numbers(kept[order])
    peers = np.empty(len(kept), np.int64)
    peers[order] = np.bincount(step)[step]
    return peers


def _straggler(kept: Rows, mine: Whole, delay_ns: Whole, *, rank: int | None, host: str) -> Straggler:
    total_ns = int((kept["wait_ns"] + kept["compute_ns"] + kept["sync_ns"]).sum())
    parts = wait_parts(kept[mine]).sum(axis=0)
    return Straggler(
        rank=rank,
        host=host,
        loss_percent=100.0 * float((delay_ns[mine] * _peers(kept)[mine]).sum()) / total_ns,
        steps=len(mine),
        where=where(kept[mine]),
        mean_delay_ms=float(delay_ns[mine].mean()) / 1e6,
        mainly=PARTS[int(parts.argmax())],
    )


def where(rows: Rows) -> str:
    """Write the steps of some rows as text, the first ranges of them."""
    ranges = []
    for epoch in np.unique(rows["epoch"]).tolist():
        steps = np.unique(rows["step"][rows["epoch"] == epoch])
        for run in np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1):
            ranges.append((epoch, f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}"))
    shown: dict[int, list[str]] = {}
    for epoch, text in ranges[:_SHOWN_RANGES]:
        shown.setdefault(epoch, []).append(text)
    text = "; ".join(f"epoch {epoch}: {', '.join(texts)}" for epoch, texts in shown.items())
    return text + (", ..." if len(ranges) > _SHOWN_RANGES else "")


def _name(hosts: Sequence[str], node: int) -> str:
    return hosts[node] if node < len(hosts) else ""
