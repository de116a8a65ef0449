"""Ranges and units of settings, declared at their fields: `Annotated[int, at_least(1), Unit("samples")] = 4`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

MAX_COUNT, MAX_BYTES = 10**9, 1 << 60
"""Larger than any run needs, yet small enough that sums of nanoseconds and bytes fit in 64 bits."""
MAX_PLANNED = 10**12  # the same for products of settings, such as the steps of all epochs


class Unit(str):
    """Unit of a setting's number, unless it counts what its description names."""


BYTES, SECONDS = Unit("bytes"), Unit("seconds")


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have, both ends included."""

    minimum: float
    maximum: float
    words: str
    """The range in words, as in "wanted 0 to 19"."""
    minus_one: str = ""
    """What -1 means, if it is allowed too: "-1 for every step"."""

    def wanted(self, number: float) -> str:
        """Return what is allowed instead of a number out of range; empty for a number in range."""
        if self.minimum <= number <= self.maximum or (self.minus_one and number == -1):
            return ""
        if self.minus_one and number > self.maximum:
            return f"at most {self.maximum}, or {self.minus_one}"
        return self.words


def at_least(minimum: float, maximum: float = MAX_COUNT) -> Range:
    """Return the range of a count or an amount."""
    return Range(minimum, maximum, f"{minimum} or more, and at most {maximum}")


def positive_or(minus_one: str) -> Range:
    """Return the range of a count that may also be -1; `minus_one` says what -1 means."""
    return Range(1, MAX_PLANNED, f"1 or more, or {minus_one}", minus_one)


MORE_THAN_0 = Range(sys.float_info.min, math.inf, "more than 0")


@cache
def declared(section: Any) -> dict[str, tuple[Any, ...]]:
    """Return the metadata of each `Annotated` field of a dataclass, by field name."""
    hints = get_type_hints(section, include_extras=True)
    names = [field.name for field in fields(section)]
    return {name: hints[name].__metadata__ if get_origin(hints[name]) is Annotated else () for name in names}


@cache
def _ranges(section: Any) -> list[tuple[str, Range]]:
    return [(name, part) for name, parts in declared(section).items() for part in parts if isinstance(part, Range)]


def out_of_range(section: Any, where: str) -> Iterator[str]:
    """Yield a message for each number of a section that is out of range; `where` is the key of the section."""
    for name, allowed in _ranges(section.__class__):
        number = getattr(section, name)
        if wanted := allowed.wanted(number):
            yield f"{_join(where, name)} is {number}: wanted {wanted}"


def problems(value: Any, where: str = "") -> Iterator[str]:
    """Yield a message for each wrong value in a tree of dataclasses and mappings of them; `where` is the root's key.

    A dataclass may have a method `problems(where)` that checks combinations of its values.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from problems(item, _join(where, key))
    elif is_dataclass(value):
        yield from out_of_range(value, where)
        for field in fields(value):
            yield from problems(getattr(value, field.name), _join(where, field.name))
        if hasattr(value, "problems"):
            yield from value.problems(where)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
