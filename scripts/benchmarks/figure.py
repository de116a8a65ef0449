"""One figure of a benchmark: dlemu's value, that of the program it is compared with, and the bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A bound on the ratio, or on dlemu's own value if it is compared with nothing."""

    of: Literal["ratio", "value"]
    bound: Literal["at least", "at most"]
    limit: float

    def met_by(self, measured: float) -> bool:
        """Return whether the bound holds; a value that could not be measured (NaN) never meets it."""
        return measured >= self.limit if self.bound == "at least" else measured <= self.limit

    def __str__(self) -> str:
        return f"{self.of} {'>=' if self.bound == 'at least' else '<='} {self.limit:g}"


def ratio_at_least(limit: float) -> Wanted:
    """Return a lower bound of dlemu / beside."""
    return Wanted(of="ratio", bound="at least", limit=limit)


def ratio_at_most(limit: float) -> Wanted:
    """Return an upper bound of dlemu / beside."""
    return Wanted(of="ratio", bound="at most", limit=limit)


def value_at_most(limit: float) -> Wanted:
    """Return an upper bound of dlemu's value, in the figure's unit."""
    return Wanted(of="value", bound="at most", limit=limit)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the output."""

    what: str
    unit: str
    dlemu: float
    beside: float = math.nan
    """The value of the program that dlemu is compared with; NaN if there is none."""
    beside_what: str = "(nothing beside it)"
    ratio: float = math.nan
    """dlemu / beside: the median of the ratios of all rounds, so that noise that affects both cancels."""
    wanted: Wanted | None
    """None for a figure that is not judged."""
    columns = ("what", "dlemu", "beside", "", "ratio", "wanted", "")

    @property
    def missed(self) -> bool:
        """Whether there is a bound that is not met."""
        return self.wanted is not None and not self.wanted.met_by(
            self.ratio if self.wanted.of == "ratio" else self.dlemu
        )

    @property
    def status(self) -> str:
        return "for information" if self.wanted is None else "MISSED" if self.missed else "ok"

    @property
    def cells(self) -> list[str]:
        beside = "-" if math.isnan(self.beside) else f"{_number(self.beside)} {self.unit}"
        ratio = "-" if math.isnan(self.ratio) else f"{self.ratio:.3f}"
        own = f"{_number(self.dlemu)} {self.unit}"
        return [self.what, own, beside, self.beside_what, ratio, str(self.wanted or "-"), self.status]

    @property
    def text(self) -> str:
        what, own, beside, beside_what, ratio, wanted, status = self.cells
        return (
            f"{what:<42} dlemu {own:<17} {beside_what:<30} {beside:<17} ratio {ratio:<8} wanted {wanted:<16} {status}"
        )


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """A comparison for which the other program could not be measured."""

    what: str
    who: str
    why: str
    columns = Figure.columns
    status = "not compared"

    @property
    def cells(self) -> list[str]:
        return [self.what, "", "", self.who, "", "", f"{self.status}: {self.why}"]

    @property
    def text(self) -> str:
        return f"{self.what:<42} {self.status}: {self.who} could not do it: {self.why}"


def compare(
    what: str, unit: str, pairs: Sequence[tuple[float, ...]], beside_what: str, wanted: Wanted | None
) -> Figure:
    """Return the figure of several rounds of (dlemu, beside)."""
    own, beside = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    ratio = statistics.median(own / beside if beside else math.nan for own, beside in pairs)
    return Figure(what=what, unit=unit, dlemu=own, beside=beside, beside_what=beside_what, ratio=ratio, wanted=wanted)


def alone(what: str, unit: str, values: Sequence[float], wanted: Wanted | None) -> Figure:
    """Return the figure of several rounds of a value that is compared with nothing."""
    return Figure(what=what, unit=unit, dlemu=statistics.median(values), wanted=wanted)


def each(
    rounds: Sequence[tuple[Any, ...]], beside_what: str, *fields: tuple[str, str, str, Wanted | None]
) -> Iterator[Figure]:
    """Yield a figure for each field (what, unit, attribute, wanted) of rounds of (dlemu, beside)."""
    for what, unit, name, wanted in fields:
        pairs = [(getattr(own, name), getattr(other, name)) for own, other in rounds]
        yield compare(what, unit, pairs, beside_what, wanted)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
