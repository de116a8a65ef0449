"""Stragglers: ranks, or whole hosts, that the others waited for, with the loss that each caused.

A rank delays a step by the time from the latest end of the others to its own end (docs/metrics.md, section 5). Longer
nominal computation is no delay. An "owner" of delays is a rank, or a host with all its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.loss import PARTS, total_ns, wait_parts
from dlemu.metrics.rows import Rows, StepTable, Whole, add_at, in_order, maximum_at, steps_of, sum_of

_MIN_LOSS_PERCENT = 0.5
"""An owner is reported if it caused at least this loss, in points of utilisation."""
_MIN_RATIO = 3
"""It must also have caused this many times the mean loss of the others: by chance every rank is last now and then."""


@dataclass(frozen=True, eq=False)
class _Delays:
    """Who delayed each step, and for how long; arrays with one entry per step."""

    owner: Whole
    """Owner (rank or host number) of the row that ended last."""
    row: Whole
    """Index of that row."""
    delay_ns: Whole
    cost_ns: Whole
    """The delay times the step's number of accelerators."""


def find_stragglers(kept: Rows, rank_nodes: Sequence[int], hosts: Sequence[str]) -> list[Finding]:
    """Return the stragglers of the kept steps, hosts before ranks, worst first. `rank_nodes[rank]` indexes `hosts`.

    Without `rank` it is a host whose ranks are late together; `loss_percent` are the points of the headline AU's loss
    that would vanish if it had been as fast as the slowest of the others; `mainly` is what mainly delayed its batches
    then: `reading`, `decoding`, `queueing` or `hand_over`, as in `Loss`.
    """
    if not len(kept) or not sum_of(kept, "compute_ns"):  # without computation AU is 0, whoever is late
        return []
    table = in_order(kept)
    nodes = list(rank_nodes or [0] * (max(table.values("rank")) + 1))
    by_rank = _delays(table, range(len(nodes)))
    ranks = [
        _straggler(table, by_rank, owner, rank=owner, host=_name(hosts, nodes[owner]))
        for owner in _owners_to_report(table, by_rank, range(len(nodes)))
    ]
    if len(set(nodes)) in (1, len(nodes)):  # a host is all ranks, or one
        return ranks
    by_host = _delays(table, nodes)
    return [
        *(
            _straggler(table, by_host, owner, rank=None, host=_name(hosts, owner))
            for owner in _owners_to_report(table, by_host, nodes)
        ),
        *ranks,
    ]


def _owners_to_report(kept: StepTable, delays: _Delays, owners: Sequence[int]) -> list[int]:
    """Return the owners to report, worst first. `owners[rank]` is the owner of each rank."""
    caused = np.bincount(delays.owner, weights=delays.cost_ns, minlength=max(owners) + 1)
    present = np.unique([owners[rank] for rank in kept.values("rank")])
    all_ns = total_ns(kept)
    if len(present) < 2 or not all_ns:
        return []
    others = (caused[present].sum() - caused) / (len(present) - 1)
    return [
        int(owner)
        for owner in present[np.argsort(-caused[present], kind="stable")]
        if 100 * caused[owner] / all_ns >= _MIN_LOSS_PERCENT and caused[owner] >= _MIN_RATIO * others[owner]
    ]


def _delays(kept: StepTable, owners: Sequence[int]) -> _Delays:
    """Compute it rank by rank, keeping each step's latest end so far and the latest end of another owner's ranks."""
    steps = steps_of(kept)
    owner, row, peers, longest = (np.zeros(steps.count, np.int64) for _ in range(4))
    latest, others = np.full(steps.count, -1), np.zeros(steps.count, np.int64)
    for first, part, place in steps.parts:
        own, ends = owners[int(part.label("rank")[0])], part["wait_ns"] + part["compute_ns"]
        add_at(peers, place, 1)
        maximum_at(longest, place, part["compute_ns"])
        before, is_other = latest[place], owner[place] != own
        later = ends > before
        behind = np.where(is_other & (before >= 0), np.minimum(before, ends), 0)
        others[place] = np.maximum(others[place], behind)
        at = np.flatnonzero(later) if isinstance(place, slice) else place[later]
        latest[at], owner[at], row[at] = ends[later], own, first + np.flatnonzero(later)
    delay_ns = np.maximum(0, latest - np.maximum(others, longest))
    return _Delays(owner, row, delay_ns, delay_ns * peers)


def _straggler(kept: StepTable, delays: _Delays, owner: int, *, rank: int | None, host: str) -> Finding:
    delayed = (delays.owner == owner) & (delays.delay_ns > 0)
    mine = kept.take(delays.row[delayed])
    parts = wait_parts(mine).sum(axis=0)
    return Finding.of(
        Code.SLOW_RANK,
        "caution",
        **({"pattern": "host"} if rank is None else {"rank": rank}),
        host=host,
        loss_percent=100.0 * float(delays.cost_ns[delayed].sum()) / total_ns(kept),
        steps=len(mine),
        mean_delay_ms=float(delays.delay_ns[delayed].mean()) / 1e6,
        mainly=PARTS[int(parts.argmax())],
    )


def _name(hosts: Sequence[str], node: int) -> str:
    return hosts[node] if node < len(hosts) else ""
