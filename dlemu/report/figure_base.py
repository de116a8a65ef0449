"""Common parts of all figures: width, colours, axes, legends, labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]

INK, MUTED, GRID, PAPER = "#1b1f24", "#59636e", "#d5dbe1", "#fdfdfe"
"""Text and lines, labels, grid, background. The page's style sheet replaces exactly these in dark mode."""
BLUE, GREEN, RED, AMBER, PURPLE, GREY, PINK, TEAL = (
    *("#3f83d6", "#2e9e68", "#dd5640", "#d99a1c"),
    *("#8b6cd0", "#8b949e", "#cc5f9b", "#2aa3a8"),
)
"""Colours that are readable on white and on black, and differ in lightness for colour-blind readers."""
COLOURS = (BLUE, AMBER, GREEN, PURPLE, RED, TEAL, PINK, GREY)
WIDTH = 640
"""Pixels between the axes of a figure."""
PADDING = {"left": 20, "top": 5, "right": 5, "bottom": 5}
"""Pixels around a figure with long names on its left: a reader's font may be wider than that of the layout."""


@dataclass(frozen=True)
class Figure:
    """A chart with title and caption."""

    title: str
    caption: str
    """What the chart shows and how to read it, in a sentence or two."""
    chart: alt.TopLevelMixin


def drawn(figures: Iterable[Callable[[Any], Figure | None]], result: Any) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure of those functions that have something to show of a result."""
    for draw in figures:
        figure = draw(result)
        if figure is not None:
            yield draw.__name__, figure


def data(rows: Sequence[Row]) -> alt.Data:
    """Return rows as chart data, encoded as JSON because altair would visit every value twice."""
    return alt.Data(values=json.dumps(rows, separators=(",", ":")), format=alt.JsonDataFormat(type="json"))


def rounded(values: NDArray[Any] | Sequence[float], digits: int = 5) -> list[float]:
    """Return numbers rounded to `digits` significant digits, which keeps the page small."""
    return [float(f"{value:.{digits}g}") for value in values]


def parts(numbers: Sequence[int], max_parts: int) -> list[list[int]]:
    """Split sorted numbers into at most `max_parts` consecutive groups of nearly equal size."""
    return [part.tolist() for part in np.array_split(np.asarray(numbers), min(max_parts, len(numbers)))]


def colours(names: Sequence[str], chosen: Sequence[str] = COLOURS) -> alt.Scale:
    """Return a scale that gives each name a colour, in order."""
    return alt.Scale(domain=list(names), range=[chosen[index % len(chosen)] for index in range(len(names))])


def legend(columns: int = 5) -> alt.Legend:
    """Return a legend above the chart."""
    return alt.Legend(title=None, orient="top", columns=columns, labelLimit=WIDTH, columnPadding=26)


def rule(
    value: float, text: str, colour: str, y: alt.Y, *, dashed: bool = True, above: bool = True, left: bool = False
) -> alt.LayerChart:
    """Return a horizontal line at `value`, labelled at its right or left end; `y` is the axis of the field `level`."""
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
    return line + name.encode(x=alt.XValue(0 if left else "width"), text=alt.Text("text:N"))


def percent_domain(values: Sequence[float]) -> list[float]:
    """Return the limits of a percent axis: from a round number below the values to 100."""
    low = min(values, default=0.0)
    step = 1 if low > 97 else 5 if low > 80 else 10
    return [max(0.0, float(np.floor((low - step / 5) / step) * step)), 100.0]
