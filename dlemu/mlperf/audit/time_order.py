"""The stamps that a rank kept follow one another: epochs, blocks within them, and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dlemu.mlperf.audit.tolerant import mapping, stamp_us
from dlemu.results.finding import Finding

_PART = re.compile(r"^(block|ckpt|save_ckpt|load_ckpt)\d+$")
_TOGETHER_US = 10_000
"""What may lie between two stamps of one moment: a line goes to the log in between."""
_OUTSIDE_US = 1_000_000
"""The same for stamps that different parts of DLIO take."""
Interval = tuple[int, int, str]


def out_of_order(epochs: Sequence[tuple[int, Mapping[str, Any]]], where: str) -> Iterator[Finding]:
    """Yield the first contradiction between the stamps of the epochs that one file reports."""
    whole = [
        found for number, epoch in sorted(epochs, key=lambda one: one[0]) if (found := _span(epoch, f"epoch {number}"))
    ]
    apart = list(_overlaps(whole))
    for number, epoch in epochs:
        parts = [(*_PART.findall(name), _span(value, name)) for name, value in epoch.items() if _PART.match(str(name))]
        for kinds in (("block",), ("ckpt", "save_ckpt", "load_ckpt")):
            apart += _overlaps(sorted(span for kind, span in parts if span is not None and kind in kinds))
        around = _span(epoch, f"epoch {number}")
        for _, span in parts:
            if around and span and not (around[0] - _OUTSIDE_US <= span[0] and span[1] <= around[1] + _OUTSIDE_US):
                apart.append(f"{span[2]} is not within epoch {number}")
    if apart:
        fix = "ask for the files of the run as DLIO wrote them"
        yield Finding("error", "time.order", f"{where}: {'; '.join(apart[:3])}", "stamps that follow one another", fix)


def _span(stated: object, name: str) -> Interval | None:
    start, end = (stamp_us(mapping(stated).get(key)) for key in ("start", "end"))
    return None if start is None or end is None else (start, end, str(name))


def _overlaps(spans: Sequence[Interval]) -> Iterator[str]:
    for start, end, name in spans:
        if end < start - _TOGETHER_US:
            yield f"{name} ends before it begins"
    for (_, before, first), (after, _, second) in pairwise(spans):
        if after < before - _TOGETHER_US:
            yield f"{second} begins {(before - after) / 1e6:.3f} s before {first} ends"
