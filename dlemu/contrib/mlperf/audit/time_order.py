"""Checks the order of one rank's time stamps: epochs, and the blocks and checkpoints within them, don't overlap."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dlemu.contrib.mlperf.audit.tolerant import mapping, stamp_us
from dlemu.results.finding import Finding

_PART = re.compile(r"^(block|ckpt|save_ckpt|load_ckpt)\d+$")
_OVERLAP_TOLERANCE_US = 10_000
"""Time stamps of the same moment may differ by this much: DLIO writes a line to its log between them."""
_EPOCH_TOLERANCE_US = 1_000_000
"""The same for time stamps that different parts of DLIO take."""
Interval = tuple[int, int, str]
"""Start and end in microseconds, and a name."""


def out_of_order(epochs: Sequence[tuple[int, Mapping[str, Any]]], where: str) -> Iterator[Finding]:
    """Yield one finding if the epochs in a file of time stamps, or their parts, are not in order."""
    in_order = sorted(epochs, key=lambda epoch: epoch[0])
    whole = [found for number, epoch in in_order if (found := _interval(epoch, f"epoch {number}"))]
    problems = list(_overlaps(whole))
    for number, epoch in epochs:
        named = [
            (match[1], _interval(value, name)) for name, value in epoch.items() if (match := _PART.match(str(name)))
        ]
        parts = [(kind, part) for kind, part in named if part is not None]
        for kinds in (("block",), ("ckpt", "save_ckpt", "load_ckpt")):
            problems += _overlaps(sorted(part for kind, part in parts if kind in kinds))
        whole_epoch = _interval(epoch, f"epoch {number}")
        if whole_epoch:
            earliest, latest = whole_epoch[0] - _EPOCH_TOLERANCE_US, whole_epoch[1] + _EPOCH_TOLERANCE_US
            outside = [name for _, (start, end, name) in parts if start < earliest or end > latest]
            problems += [f"{name} is not within epoch {number}" for name in outside]
    if problems:
        seen, fix = f"{where}: {'; '.join(problems[:3])}", "ask for the files of the run as DLIO wrote them"
        yield Finding("error", "time.order", seen, "time stamps in order, without overlaps", fix)


def _interval(stated: object, name: str) -> Interval | None:
    start, end = (stamp_us(mapping(stated).get(key)) for key in ("start", "end"))
    return None if start is None or end is None else (start, end, str(name))


def _overlaps(intervals: Sequence[Interval]) -> Iterator[str]:
    for start, end, name in intervals:
        if end < start - _OVERLAP_TOLERANCE_US:
            yield f"{name} ends before it begins"
    for (_, before, first), (after, _, second) in pairwise(intervals):
        if after < before - _OVERLAP_TOLERANCE_US:
            yield f"{second} begins {(before - after) / 1e6:.3f} s before {first} ends"
