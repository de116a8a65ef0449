"""Two figures side by side: how much more one is than the other, whether that is shown, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlemu.comm.environment import HostFacts, StorageFacts
from dlemu.results.figures import Value
from dlemu.results.parts import HostDevice


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a run was measured under, as its kind of job says it. Values are those of JSON."""

    title: str
    """What ran, in a few words: runs with other ones did not do the same."""
    started_at: str = ""
    """ISO 8601 with zone."""
    hosts: tuple[HostFacts, ...] = ()
    storage: StorageFacts | None = None
    devices: tuple[HostDevice, ...] = ()
    """Those whose bytes the run moved."""
    facts: dict[str, str] = field(default_factory=dict)
    """Further ones, in words, that need not be equal."""
    work: dict[str, Any] = field(default_factory=dict)
    """What was read or written: runs that differ in it did other work."""
    how: dict[str, Any] = field(default_factory=dict)
    """Settings that change what is measured; empty of a result that is not dlemu's, which does not say them."""
    warnings: tuple[str, ...] = ()
    """What a reader of its numbers must know."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One metric of both sides."""

    a: float
    a_half_width: float | None
    """Of the 95 % interval; None of fewer than three repetitions."""
    b: float
    b_half_width: float | None
    difference_percent: float | None
    """100 x (A / B - 1); None where B is 0."""
    half_width_percent: float | None
    """Of the difference's 95 % interval; None where one side has none."""
    distinct: bool | None
    """The difference is larger than its half width; None where that is not known."""


def difference(a: Value, b: Value) -> Difference:
    """Return both and how much more A is than B in %; relative half widths add in squares (to first order)."""
    percent = 100 * (a.mean / b.mean - 1) if b.mean else None
    width = None
    if a.mean and b.mean and a.half_width is not None and b.half_width is not None:
        width = 100 * abs(a.mean / b.mean) * math.hypot(a.half_width / a.mean, b.half_width / b.mean)
    return Difference(
        a=a.mean,
        a_half_width=a.half_width,
        b=b.mean,
        b_half_width=b.half_width,
        difference_percent=percent,
        half_width_percent=width,
        distinct=None if percent is None or width is None else abs(percent) > width,
    )


def differing(a: Conditions, b: Conditions) -> list[str]:
    """Return a sentence for each way in which hosts, work or settings of two sides differ, as far as both say them."""
    if not a.how or not b.how:
        return []
    same_work = a.title == b.title
    return [
        *differing_hosts(a.hosts, b.hosts),
        *(f"{key} was {of_a} for A and {of_b} for B" for key, of_a, of_b in _apart(a.how, b.how)),
        *(f"{key} was {of_a} for A and {of_b} for B" for key, of_a, of_b in _apart(a.work, b.work) if same_work),
    ]


def differing_work(a: Conditions, b: Conditions) -> list[str]:
    """Return in what the work of two sides differs, as phrases."""
    return [f"{key} is {of_a} for A and {of_b} for B" for key, of_a, of_b in _apart(a.work, b.work)]


def _apart(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, a[key], b[key]) for key in a if key in b and a[key] != b[key]]


def difference_in_time(total: Difference, *, repeated: str = "epochs") -> str:
    """Return a difference in seconds in words; `repeated` is what there may be too few of for an interval."""
    percent, width = total.difference_percent, total.half_width_percent
    if percent is None:
        return "no time passed"
    if total.distinct is False:
        return f"no significant difference in time: A to B {percent:+.1f} % +- {width:.1f}"
    said = f"A takes {abs(percent):.1f} % {'less' if percent < 0 else 'more'} time than B"
    return said + (f" (too few {repeated}: no interval)" if width is None else f" (+- {width:.1f})")


def in_words(both: Difference, *, better: str) -> str:
    """Return a difference of what is better `higher` or `lower`, or neither of them, in words."""
    percent, width = both.difference_percent, both.half_width_percent
    if percent is None:
        return "B is 0"
    if both.distinct is False:
        return f"no significant difference: A to B {percent:+.1f} % +- {width:.1f}"
    words = ("higher", "lower") if better == "neither" else ("better", "worse")
    is_first = (percent > 0) != (better == "lower")
    said = f"A is {abs(percent):.1f} % {words[not is_first]} than B"
    return said + ("" if width is None else f" (+- {width:.1f})")


_HOST_FACTS = ("processor", "cpu_usable", "memory_bytes", "kernel", "dlemu", "packages")
"""Facts of a host that measure storage differently when they differ."""


def differing_hosts(a: Sequence[HostFacts], b: Sequence[HostFacts]) -> Iterator[str]:
    """Yield a sentence for each way in which the hosts of two sides differ."""
    names = [sorted(host.host for host in hosts) for hosts in (a, b)]
    if names[0] != names[1]:
        hosts = f"A was measured on {_listed(names[0])} and B on {_listed(names[1])}"
        yield f"{hosts}: the difference is not due to the storage alone"
    for key in _HOST_FACTS:
        facts = [sorted({_plain(getattr(host, key)) for host in hosts}) for hosts in (a, b)]
        if facts[0] != facts[1]:
            yield f"the hosts' {key} was {_listed(facts[0])} for A and {_listed(facts[1])} for B"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values[:4]) + (" ..." if len(values) > 4 else "") if values else "nothing known"
