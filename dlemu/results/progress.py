"""How far a run that goes on is, and how fast: one stream of figures for whoever shows or exports them.

A kind of job says by its part `live` how these are read from what its ranks leave in live/ of the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

RECENT_SECONDS = 10.0
"""What counts as now, for rates."""


@dataclass(frozen=True)
class Figure:
    """A number of a run that goes on, in the base unit in which its name ends."""

    name: str
    """Ends in `_ratio`, `_bytes_per_second`, `_per_second` or `_seconds`; a plain count or depth has none."""
    value: float
    meaning: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """What it is of, where there are several, such as a device."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    at: str
    """In words: `epoch 2/5, step 3/20`."""
    done_ratio: float | None = None
    """0 to 1, of the slowest rank; None where nothing tells."""
    seconds_left: float | None = None
    """None where nothing tells."""
    figures: tuple[Figure, ...] = ()
    """Of all ranks together."""
    ranks: Mapping[int, tuple[Figure, ...]] = field(default_factory=dict)
    """Of each rank that has begun."""


class Follower(Protocol):
    """Follows the ranks of one run; made of its facts as they were before the first step, and its live folder."""

    def look(self) -> Progress | None:
        """Return how far the run is now, None while no rank has begun. Raises OSError where the files are gone."""
        ...


class MakesFollower(Protocol):
    """A kind's part `live`."""

    def __call__(self, facts_path: str, live_folder: str) -> Follower:
        """Raises UserError for damaged facts."""
        ...


def figure_texts(figure: Figure) -> tuple[str, str]:
    """Return a figure's name and value as people read them: without its unit, and with it."""
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
"""The longer ending first."""
