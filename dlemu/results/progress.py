"""Progress and speed of a run in progress, as figures for the terminal.

A kind of job reads them, with its part `live`, from the files that its ranks write into live/ of the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

RECENT_SECONDS = 10.0
"""Current rates are means over this time."""


@dataclass(frozen=True)
class Figure:
    """A number of a run in progress, in the base unit that its name ends with."""

    name: str
    """Ends in `_ratio`, `_bytes_per_second`, `_per_second` or `_seconds`; a plain count or depth has none."""
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    """What it belongs to where there are several, such as a device."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    at: str
    """The current position as text: `epoch 2/5, step 3/20`."""
    done_ratio: float | None = None
    """0 to 1, of the slowest rank; None where it is not known."""
    seconds_left: float | None = None
    """None where it is not known."""
    figures: tuple[Figure, ...] = ()
    """Figures of all ranks together."""
    ranks: Mapping[int, tuple[Figure, ...]] = field(default_factory=dict)
    """Rank -> its figures, for ranks that have begun."""


class Follower(Protocol):
    """Follows the ranks of one run."""

    def look(self) -> Progress | None:
        """Return how far the run is now, None while no rank has begun. Raises OSError where the files are gone."""
        ...


def figure_texts(figure: Figure) -> tuple[str, str]:
    """Return a figure's name without its unit, and its value with it, for people to read."""
    for unit, (scale, digits, shown) in _UNITS.items():
        if figure.name.endswith(unit):
            return figure.name.removesuffix(unit).replace("_", " "), f"{figure.value * scale:,.{digits}f} {shown}"
    return figure.name.replace("_", " "), f"{figure.value:,.4g}"


_UNITS: dict[str, tuple[float, int, str]] = {
    "_ratio": (100, 1, "%"),
    "_bytes_per_second": (1e-6, 1, "MB/s"),
    "_per_second": (1, 1, "/s"),
    "_seconds": (1, 1, "s"),
}
"""Ending of a name -> factor, decimal places and unit to show; a longer ending comes before its own end."""
