"""How long workers spent in reads for a batch: the application's own latency, known on every file system."""

from __future__ import annotations

import numpy as np

from dlemu.report.figures._bins import Bins, histogram
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.results.run import Floats, Run

ORDER = 62
_BINS, _NARROW_BINS = 60, 30


def draw(run: Run, canvas: Canvas) -> Figure | None:
    read_ms = run.training["read_ns"][run.training["read_ns"] > 0] / 1e6
    if not len(read_ms):
        return None
    bins = _log_bins(read_ms, _NARROW_BINS if canvas.narrow else _BINS)
    chart = histogram(
        {"read": bins}, canvas, x="ms in reads for one batch (log)", y="share of batches, %", log=True, marks=True
    )
    says = "What a worker waited in read calls for one batch of one rank, page cache included. All steps of training."
    return Figure("Read time of a batch", says, chart.properties(width=canvas.width, height=180))


def _log_bins(values: Floats, count: int) -> Bins:
    low, high = float(values.min()), float(values.max()) * 1.0001
    if high / low < 1.05:
        low, high = low / 1.05, high * 1.05
    edges = np.geomspace(low, high, count + 1)
    weights = np.histogram(values, edges)[0].astype(np.float64)
    return Bins(edges[:-1], edges[1:], weights)
