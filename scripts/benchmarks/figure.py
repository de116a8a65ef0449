"""One figure of a benchmark: what dlemu took beside what the plain thing took, and what was wanted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A bound on the ratio, or on dlemu's own value where nothing plain does the same."""

    of: Literal["ratio", "value"]
    bound: Literal["at least", "at most"]
    limit: float

    def met_by(self, measured: float) -> bool:
        """Say whether the bound holds; what could not be measured (NaN) never meets it."""
        return measured >= self.limit if self.bound == "at least" else measured <= self.limit

    def __str__(self) -> str:
        return f"{self.of} {'>=' if self.bound == 'at least' else '<='} {self.limit:g}"


def ratio_at_least(limit: float) -> Wanted:
    """dlemu / beside must reach `limit`."""
    return Wanted(of="ratio", bound="at least", limit=limit)


def ratio_at_most(limit: float) -> Wanted:
    """dlemu / beside must not exceed `limit`."""
    return Wanted(of="ratio", bound="at most", limit=limit)


def value_at_most(limit: float) -> Wanted:
    """dlemu's value must not exceed `limit`, in the figure's unit."""
    return Wanted(of="value", bound="at most", limit=limit)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the output."""

    what: str
    unit: str
    dlemu: float
    beside: float
    """NaN when nothing stands beside it."""
    beside_what: str
    ratio: float
    """dlemu / beside: the median of the rounds' own ratios, so that noise which both met cancels."""
    wanted: Wanted | None
    """None for a figure that only informs."""

    @property
    def missed(self) -> bool:
        """Say whether something was wanted and is not met."""
        if self.wanted is None:
            return False
        return not self.wanted.met_by(self.ratio if self.wanted.of == "ratio" else self.dlemu)

    @property
    def line(self) -> str:
        """The figure as a line of text, in columns."""
        beside = "-" if math.isnan(self.beside) else f"{_number(self.beside)} {self.unit}"
        verdict = "for information" if self.wanted is None else "MISSED" if self.missed else "ok"
        ratio = "-" if math.isnan(self.ratio) else f"{self.ratio:.3f}"
        own = f"{_number(self.dlemu)} {self.unit}"
        return (
            f"{self.what:<42} dlemu {own:<17} {self.beside_what:<30} {beside:<17} ratio {ratio:<8} "
            f"wanted {self.wanted or '-'!s:<16} {verdict}"
        )


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """A comparison that the peer could not take part in."""

    what: str
    who: str
    why: str

    @property
    def line(self) -> str:
        """What is missing and why, as a line of text."""
        return f"{self.what:<42} not compared: {self.who} could not do it: {self.why}"


def compare(
    what: str, unit: str, pairs: Sequence[tuple[float, ...]], beside_what: str, wanted: Wanted | None
) -> Figure:
    """Return the figure of several rounds, given as (dlemu, beside) of each."""
    return Figure(
        what=what,
        unit=unit,
        dlemu=statistics.median(own for own, _ in pairs),
        beside=statistics.median(beside for _, beside in pairs),
        beside_what=beside_what,
        ratio=statistics.median(own / beside if beside else math.nan for own, beside in pairs),
        wanted=wanted,
    )


def alone(what: str, unit: str, values: Sequence[float], wanted: Wanted) -> Figure:
    """Return the figure of several rounds of something that nothing stands beside."""
    return Figure(
        what=what,
        unit=unit,
        dlemu=statistics.median(values),
        beside=math.nan,
        beside_what="(nothing beside it)",
        ratio=math.nan,
        wanted=wanted,
    )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
