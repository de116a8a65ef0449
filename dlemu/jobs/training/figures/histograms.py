"""Histograms: queue depths, latencies and sizes of requests, and read times of batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import altair as alt
import numpy as np

from dlemu.jobs.training.result import Run
from dlemu.metrics.over_time import Floats
from dlemu.metrics.rows import StepTable, chunks
from dlemu.report.figure_base import (
    AMBER,
    BLUE,
    INK,
    PAPER,
    Canvas,
    Figure,
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


def histogram(
    histograms: dict[str, Bins], canvas: Canvas, *, x: str, y: str, log: bool, marks: bool, counts: bool = False
) -> alt.LayerChart:
    """Draw each bin's share in percent, by operation; `marks`: percentiles of reads, `counts`: whole numbers."""
    rows: list[Row] = [
        {"what": f"{name}s", "low": low, "high": high, "percent": share}
        for name, bins in histograms.items()
        for low, high, share in zip(rounded(bins.lows), rounded(bins.highs), rounded(bins.percents, 4), strict=True)
        if share
    ]
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
    percentiles = _percentiles(histograms["read"], log) if marks and "read" in histograms else ()
    return alt.layer(chart, *percentiles).properties(width=canvas.width, height=180)


def _percentiles(bins: Bins, log: bool) -> tuple[alt.Chart, ...]:
    """Draw a line with a label for each percentile; labels are staggered vertically, so that they do not overlap."""
    rows: list[Row] = []
    for place, percent in enumerate(_PERCENTILES):
        value = bins.percentile(percent)
        rows.append({"at": value, "text": f"p{percent}  {float(f'{value:.3g}'):,.10g}", "down": 6 + 13 * place})
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


_MAX_SAMPLED_BINS = 64  # deeper queues share bins, as narrower bars could not be seen


def queue_depth_share(run: Run, canvas: Canvas) -> Figure | None:
    """Histogram of the time at each queue depth: most devices need several requests at once to be fast."""
    sampled = _sampled(run)
    if sampled is None:
        return None
    chart = histogram(
        {"request": sampled},
        canvas,
        x="requests in the queue",
        y="share of time, %",
        log=False,
        marks=False,
        counts=True,
    )
    caption = "Share of the samples that found this many requests in the device's queue, reads and writes together."
    return Figure("Time at each queue depth", caption, chart)


def _sampled(run: Run) -> Bins | None:
    """Return the histogram of the queue depths in the recorder's readings during training, all devices together."""
    devices = run.device_series("block", "in_flight")
    if not devices:
        return None
    values = np.concatenate([series.values[series.seconds >= 0] for series in devices])
    if not len(values):
        return None
    width = max(1, int(np.ceil((values.max() + 1) / _MAX_SAMPLED_BINS)))
    counts = np.bincount((values // width).astype(int))
    lows = np.arange(len(counts), dtype=np.float64) * width
    return Bins(lows, lows + width, counts.astype(np.float64))


_BINS = 60
"""Bins of the histogram; a narrow figure has half of them, so this is even."""


def batch_time(run: Run, canvas: Canvas) -> Figure | None:
    """Histogram of the time that workers spent in reads for a batch: the latency that the application sees."""
    bins = run.training.once(_read_bins)
    if bins is None:
        return None
    if canvas.narrow:
        bins = Bins(bins.lows[::2], bins.highs[1::2], bins.weights.reshape(-1, 2).sum(axis=1))
    chart = histogram(
        {"read": bins}, canvas, x="time in reads per batch, ms (log)", y="share of batches, %", log=True, marks=True
    )
    caption = (
        "Time that a worker spent in read calls for one batch of one rank, page cache included. All training steps."
    )
    return Figure("Read time of a batch", caption, chart)


def _read_bins(rows: StepTable) -> Bins | None:
    """Return the histogram of the batches' read times, in ms; None where no batch was read."""
    bounds = [
        (int(values[values > 0].min()), int(values.max())) for part in chunks(rows) if (values := part["read_ns"]).any()
    ]
    if not bounds:
        return None
    low, high = min(low for low, _ in bounds) / 1e6, max(high for _, high in bounds) / 1e6 * 1.0001
    if high / low < 1.05:
        low, high = low / 1.05, high * 1.05
    edges = np.geomspace(low, high, _BINS + 1)
    weights = np.zeros(_BINS)
    for part in chunks(rows):
        weights += np.histogram(part["read_ns"] / 1e6, edges)[0]  # times of 0 are below all bins
    return Bins(edges[:-1], edges[1:], weights)
