"""Histogram of the time that workers spent in reads for a batch: the latency that the application sees."""

from __future__ import annotations

import numpy as np

from dlemu.jobs.training.figures._bins import Bins, histogram
from dlemu.jobs.training.result import Run
from dlemu.metrics.rows import StepTable, chunks
from dlemu.report.figure_base import Canvas, Figure

ORDER = 62
_BINS = 60
"""Bins of the histogram; a narrow figure has half of them, so this is even."""


def draw(run: Run, canvas: Canvas) -> Figure | None:
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
    return Figure("Read time of a batch", caption, chart.properties(width=canvas.width, height=180))


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
