"""Common parts of all figures: width, colours, legends, and charts of lines with their names at the right end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]

INK, MUTED, GRID, PAPER = "#1b1f24", "#59636e", "#d5dbe1", "#fdfdfe"  # text and lines, labels, grid, background
BLUE, GREEN, RED, AMBER = "#2569bd", "#1a7f4b", "#c0392b", "#946200"
PURPLE, GREY, PINK, TEAL = "#7350c4", "#66707a", "#b5417f", "#0f7a80"
"""Colours with enough contrast for text. The page replaces them by CSS variables, which are lighter in dark mode."""
COLOURS = (BLUE, AMBER, GREEN, PURPLE, RED, TEAL, PINK, GREY)
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", PAPER: "paper", BLUE: "blue", AMBER: "amber", GREEN: "green"}
VARIABLES |= {PURPLE: "purple", RED: "red", TEAL: "teal", PINK: "pink", GREY: "grey"}  # colour -> variable in page.css
LEFT = 46  # pixels between a figure's left edge and its y axis: the same in all figures, which aligns their axes
WIDTH = 640  # pixels of the plot, between its left and right edge
FULL_WIDTH = 5 + LEFT + WIDTH + 9  # pixels of a figure: the same for all, so that the page scales them alike
_NAMES_WIDTH = 132  # pixels right of the plot for the names of its lines and levels


@dataclass(frozen=True)
class Figure:
    """A chart with title and caption."""

    title: str  # the finding about this result that the chart shows
    caption: str  # how to read the chart, in a sentence or two
    chart: alt.TopLevelMixin
    folded: bool = False  # whether the page shows it collapsed, as it does charts that explain the answer


class Level(NamedTuple):
    """A horizontal line across a chart, with a name; or the name of a line at the height `value`."""

    value: float
    name: str
    colour: str = GREEN


def drawn(figures: Iterable[Callable[[Any], Figure | None]], result: Any) -> Iterator[tuple[str, Figure]]:
    """Yield the figures that the functions draw of a result, by the functions' names; one may return None."""
    for draw in figures:
        figure = draw(result)
        if figure is not None:
            yield draw.__name__, figure


def data(rows: Sequence[Row]) -> alt.Data:
    """Return rows as chart data, encoded as JSON here because altair would visit every value twice."""
    return alt.Data(values=json.dumps(rows, separators=(",", ":")), format=alt.JsonDataFormat(type="json"))


def rounded(values: NDArray[Any] | Sequence[float], digits: int = 5) -> list[float]:
    """Return numbers rounded to `digits` significant digits, which keeps the page small."""
    return [float(f"{value:.{digits}g}") for value in values]


def colours(names: Sequence[str], palette: Sequence[str] = COLOURS) -> alt.Scale:
    return alt.Scale(domain=list(names), range=[palette[index % len(palette)] for index in range(len(names))])


def legend(columns: int) -> alt.Legend:
    return alt.Legend(title=None, orient="top", columns=columns, labelLimit=WIDTH, columnPadding=26)


def lines(
    rows: Sequence[Row],
    x: alt.X,
    y_title: str,
    *,
    names: Sequence[str] = (),
    domain: Sequence[float] = (),
    palette: Sequence[str] = COLOURS,
    levels: Sequence[Level] = (),
    points: bool = False,
    height: int = 220,
) -> alt.LayerChart:
    """Return a chart of lines. Each row has the name of its `line`, its `value` and its x; rows are in the order of x.

    `names`: the lines of all panels below each other, so that colours agree between them (default: those in `rows`).
    Several lines have their names at the right. `domain`: limits of the y axis (default: 0 and the highest value).
    `levels` are drawn as horizontal lines. With `points`, each row is a point: hollow if its `verdict` is not `pass`,
    with an interval if it has `low` and `high`.
    """
    names = names or list(dict.fromkeys(row["line"] for row in rows))
    tops = [float(row["high"] if "high" in row else row["value"]) for row in rows] + [level.value for level in levels]
    low, high = domain or (0.0, 1.04 * max(tops, default=0.0) or 1.0)
    y_scale = alt.Scale(domain=[low, high], nice=False, clamp=True)
    y = alt.Y("value:Q", title=y_title, scale=y_scale)
    colour = alt.Color("line:N", scale=colours(names, palette), legend=None)
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=colour)
    layers: list[alt.Chart] = [
        alt.Chart(data([{"value": level.value}]))
        .mark_rule(color=level.colour, strokeDash=[6, 4], strokeWidth=1.5)
        .encode(y=y)
        for level in levels
    ]
    if points:
        layers += _point_layers(base, alt.Y("low:Q", title=y_title, scale=y_scale))
    else:
        layers.append(base.mark_line(clip=True, interpolate="step-before", strokeWidth=1.4))
    labels = [*levels]  # names at the right, of levels and of lines, each at the height of its value
    for index, name in enumerate(names):
        values = [row["value"] for row in rows if row["line"] == name]
        if values and len(names) > 1:
            value = values[-1] if points else float(np.median(values))  # the last value over time is often a pause
            labels.append(Level(value, name, palette[index % len(palette)]))
    width = WIDTH
    if labels:
        layers.append(_names_layer(labels, low, high, height))
        width -= _NAMES_WIDTH
    return alt.layer(*layers).properties(width=width, height=height)


def _point_layers(base: alt.Chart, interval_start: alt.Y) -> list[alt.Chart]:
    """Return lines with a point for each row: hollow if its verdict is not `pass`, with an interval if it has one."""
    failed = "datum.verdict && datum.verdict != 'pass'"
    return [
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.6).encode(y=interval_start, y2="high:Q"),
        base.mark_line(strokeWidth=1.6),
        base.mark_point(filled=True, size=60, opacity=1),
        base.transform_filter(failed).mark_point(filled=True, size=18, opacity=1).encode(color=alt.value(PAPER)),
    ]


def _names_layer(labels: Sequence[Level], low: float, high: float, height: int) -> alt.Chart:
    """Return the names of lines and levels right of the plot, from top to bottom, at least a line of text apart."""
    pixel, rows = -float("inf"), []
    for label in sorted(labels, key=lambda label: -label.value):
        pixel = max(pixel + 14, height * min(1.0, (high - label.value) / (high - low)))  # a line of text: 14 pixels
        rows.append({"name": label.name, "colour": label.colour, "pixel": round(pixel, 1)})
    return (
        alt.Chart(data(rows))
        .mark_text(align="left", dx=6, limit=_NAMES_WIDTH, fontSize=11)
        .encode(
            x=alt.XValue("width"),
            y=alt.Y("pixel:Q", scale=None, axis=None),
            text=alt.Text("name:N"),
            color=alt.Color("colour:N", scale=None, legend=None),
        )
    )
