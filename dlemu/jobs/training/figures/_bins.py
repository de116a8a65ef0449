"""Histograms of a block trace by operation, with percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import altair as alt
import numpy as np
import pyarrow.compute as pc

from dlemu.jobs.training.result import Run
from dlemu.metrics.over_time import Floats
from dlemu.report.figure_base import (
    AMBER,
    BLUE,
    INK,
    PAPER,
    Canvas,
    Row,
    colours,
    data,
    legend,
    rounded,
    whole_ticks,
)

OPERATIONS = ("read", "write")
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Bins:
    """A histogram: the weight of each bin [low, high), all devices together."""

    lows: Floats
    highs: Floats
    weights: Floats

    @property
    def percents(self) -> Floats:
        """Each bin's share of the total weight."""
        shares: Floats = 100 * self.weights / self.weights.sum()
        return shares

    def percentile(self, percent: float) -> float:
        """Return a percentile, assuming that the weight within a bin is spread evenly."""
        below = np.concatenate([[0.0], np.cumsum(self.weights)]) * 100 / self.weights.sum()
        place = min(int(np.searchsorted(below, percent, side="left")), len(self.weights)) - 1
        place = max(place, 0)
        share = (percent - below[place]) / (below[place + 1] - below[place])
        return float(self.lows[place] + share * (self.highs[place] - self.lows[place]))


def traced_bins(run: Run, kind: str, operation: str) -> Bins | None:
    """Return the block trace's histogram of a kind, such as `latency_us`; None when it is empty."""
    if run.block_trace is None:
        return None
    table = run.block_trace
    table = table.filter(pc.and_(pc.equal(table["kind"], kind), pc.equal(table["operation"], operation)))
    lows, highs, weights = (table[name].to_numpy() for name in ("low", "high", "weight"))
    if not len(weights) or weights.sum() <= 0:
        return None
    edges, places = np.unique(lows, return_inverse=True)
    tops = np.zeros(len(edges))
    np.maximum.at(tops, places, highs)
    return Bins(edges, tops, np.bincount(places, weights).astype(np.float64))


def histogram(
    histograms: dict[str, Bins], canvas: Canvas, *, x: str, y: str, log: bool, marks: bool, counts: bool = False
) -> alt.LayerChart:
    """Draw each bin's share in percent, one colour per operation.

    `marks`: also mark the percentiles of reads. `counts`: values are whole numbers, and so are the ticks of their axis.
    """
    rows = [row for name, bins in histograms.items() for row in _rows(name, bins)]
    if log:
        rows = [row for row in rows if row["high"] > 0]
        lowest = min(row["high"] for row in rows) / 2  # instead of 0, which has no logarithm
        rows = [row | {"low": max(row["low"], lowest)} for row in rows]
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(nice=False, zero=False)
    names = [f"{name}s" for name in OPERATIONS]
    colour = alt.Color("what:N", scale=colours(names, (BLUE, AMBER)), legend=legend(canvas, 2))
    axis = alt.Axis(grid=False)
    if counts:
        axis = alt.Axis(grid=False, format=",d", values=whole_ticks(max(float(row["high"]) for row in rows)))
    across = alt.X("low:Q", title=x, scale=scale, axis=axis)
    bars = alt.Chart(data(rows)).mark_rect(opacity=0.6, strokeWidth=0)
    chart = bars.encode(
        x=across,
        x2=alt.X2("high:Q"),
        y=alt.Y("percent:Q", title=y),
        y2=alt.Y2Datum(0),
        color=colour if len(histograms) > 1 else alt.ColorValue(BLUE),
    )
    if not marks or "read" not in histograms:
        return alt.layer(chart)
    return alt.layer(chart, *_percentiles(histograms["read"], log))


def _rows(name: str, bins: Bins) -> list[Row]:
    parts = zip(rounded(bins.lows), rounded(bins.highs), rounded(bins.percents, 4), strict=True)
    return [{"what": f"{name}s", "low": low, "high": high, "percent": share} for low, high, share in parts if share]


def _percentiles(bins: Bins, log: bool) -> tuple[alt.Chart, ...]:
    """Draw a line with a label for each percentile; labels are staggered vertically, so that they do not overlap."""
    rows: list[Row] = []
    for place, percent in enumerate(_PERCENTILES):
        value = bins.percentile(percent)
        rows.append({"at": value, "text": f"p{percent}  {_three_digits(value)}", "down": 6 + 13 * place})
    low, high = (float(end) for end in (bins.lows[0], bins.highs[-1]))
    middle = (max(low, high * 1e-9) * high) ** 0.5 if log else (low + high) / 2
    lines = alt.Chart(data(rows)).mark_rule(color=INK, strokeDash=[3, 3]).encode(x=alt.X("at:Q"))
    left = [row for row in rows if row["at"] <= middle]
    return lines, *_labels(left, "left"), *_labels([row for row in rows if row["at"] > middle], "right")


def _labels(rows: list[Row], align: Literal["left", "right"]) -> list[alt.Chart]:
    """Write the labels beside their lines, with a margin in the paper's colour; `align` is the side of the text."""
    if not rows:
        return []
    base = alt.Chart(data(rows)).encode(x=alt.X("at:Q"), y=alt.Y("down:Q", scale=None), text=alt.Text("text:N"))
    place = partial(base.mark_text, align=align, baseline="top", dx=3 if align == "left" else -3, fontSize=11)
    return [place(color=PAPER, stroke=PAPER, strokeWidth=4, strokeJoin="round"), place(color=INK)]


def _three_digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"
