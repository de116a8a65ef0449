"""What every figure has in common: where it is drawn, its colours, and how many marks it may take."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]

INK, MUTED, GRID, PAPER = "#1b1f24", "#59636e", "#d5dbe1", "#fdfdfe"
"""Text and lines, labels, grid, background. The page's style sheet swaps exactly these for a dark screen."""
BLUE, GREEN, RED, AMBER, PURPLE, GREY, PINK, TEAL = (
    *("#3f83d6", "#2e9e68", "#dd5640", "#d99a1c"),
    *("#8b6cd0", "#8b949e", "#cc5f9b", "#2aa3a8"),
)
"""Colours that stand on white and on black, and differ for the colour-blind in lightness too."""
COLOURS = (BLUE, AMBER, GREEN, PURPLE, RED, TEAL, PINK, GREY)
_PARTS = {
    "computing": (GREEN, "computing"),
    "first_step": (PINK, "first steps"),
    "reading": (RED, "reading"),
    "decoding": (AMBER, "decoding"),
    "queueing": (PURPLE, "queueing in the loader"),
    "hand_over": (TEAL, "hand-over"),
    "uneven_computation": (GREY, "uneven computation"),
    "sync": (BLUE, "sync"),
}
"""Part of the time -> colour, and how it is called; the same in every figure."""


PADDING = {"left": 20, "top": 5, "right": 5, "bottom": 5}
"""Pixels around a picture with long names on its left: a reader's font may be wider than the one it was laid out in."""


@dataclass(frozen=True)
class Canvas:
    """Where a figure is drawn: a desk or paper, or a phone."""

    width: int
    """Pixels between the axes."""
    narrow: bool


DESK = Canvas(width=640, narrow=False)
PHONE = Canvas(width=262, narrow=True)


@dataclass(frozen=True)
class Figure:
    """One picture with what stands around it."""

    title: str
    caption: str
    """What is seen and how to read it, in a sentence or two."""
    chart: alt.TopLevelMixin


HOVER = "\u2060"
"""Begins the description of a mark that is shown when a pointer rests on it; Vega's own descriptions have none."""


def data(rows: Sequence[Row]) -> alt.Data:
    """Hand rows to a chart, as text: altair would walk every value of them, twice."""
    return alt.Data(values=json.dumps(rows, separators=(",", ":")), format=alt.JsonDataFormat(type="json"))


def rounded(values: NDArray[Any] | Sequence[float], digits: int = 5) -> list[float]:
    """Return numbers with so many digits that count: a picture shows no more, and the page stays small."""
    return [float(f"{value:.{digits}g}") for value in values]


def parts(numbers: Sequence[int], most: int) -> list[list[int]]:
    """Cut sorted numbers into at most `most` runs of neighbours of nearly the same length."""
    return [part.tolist() for part in np.array_split(np.asarray(numbers), min(most, len(numbers)))]


def colours(names: Sequence[str], chosen: Sequence[str] = COLOURS) -> alt.Scale:
    """Give each name its colour, in order."""
    return alt.Scale(domain=list(names), range=[chosen[place % len(chosen)] for place in range(len(names))])


def part_name(part: str) -> str:
    """Return how a part of the time is called; a new one by its own name."""
    return _PARTS[part][1] if part in _PARTS else part.replace("_", " ")


def part_colours(names: Sequence[str]) -> alt.Scale:
    """Give parts of the time their colours."""
    return colours([part_name(part) for part in names], [_PARTS[part][0] if part in _PARTS else GREY for part in names])


def whole_ticks(most: float) -> list[int]:
    """Return the ticks of an axis that counts from 0 to `most`: whole numbers, 7 of them at most.

    Vega's own least step still makes halves of a short axis, and shows them rounded.
    """
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    step = next(step for step in steps if most <= 6 * step)
    return list(range(0, math.floor(most) + 1, step))


def legend(canvas: Canvas, columns: int = 0) -> alt.Legend:
    """Place the legend above the picture, in as many columns as fit."""
    return alt.Legend(
        title=None,
        orient="top",
        columns=columns or (2 if canvas.narrow else 5),
        labelLimit=canvas.width,
        columnPadding=26,
    )


def rule(
    value: float, text: str, colour: str, y: alt.Y, *, dashed: bool = True, above: bool = True, left: bool = False
) -> alt.LayerChart:
    """Draw a level line across the picture with its name on its right or left end; `y` is the axis of `level`."""
    base = alt.Chart(data([{"level": value, "text": text}])).encode(y=y)
    line = base.mark_rule(color=colour, strokeDash=[6, 4] if dashed else [2, 3], strokeWidth=1.5)
    name = base.mark_text(
        align="left" if left else "right",
        baseline="bottom" if above else "top",
        dx=4 if left else 0,
        dy=-3 if above else 4,
        color=colour,
        fontSize=11,
    )
    return line + name.encode(x=alt.value(0 if left else "width"), text="text:N")


def percent_domain(values: Sequence[float], *, most: float = 100.0) -> list[float]:
    """Return limits for an axis of percent that end at `most` and begin at a round number below the values."""
    low = min(values, default=0.0)
    step = 1 if low > 97 else 5 if low > 80 else 10
    return [max(0.0, float(np.floor((low - step / 5) / step) * step)), most]
