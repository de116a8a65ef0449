"""Histogram of the time at each queue depth: most devices need several requests at once to be fast."""

from __future__ import annotations

import numpy as np

from dlemu.jobs.training.figures._bins import OPERATIONS, Bins, histogram, traced_bins
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import Canvas, Figure

ORDER = 51
_MAX_SAMPLED_BINS = 64  # deeper queues share bins, as narrower bars could not be seen


def draw(run: Run, canvas: Canvas) -> Figure | None:
    histograms = {name: bins for name in OPERATIONS if (bins := traced_bins(run, "queue_depth_seconds", name))}
    caption = "Share of the run's time at each depth of the device's queue, exact, by operation (block trace)."
    if not histograms:
        sampled = _sampled(run)
        if sampled is None:
            return None
        histograms = {"request": sampled}
        caption = (
            "Share of the samples that found this many requests in the device's queue, reads and writes together. "
            "telemetry.block_trace=true measures it exactly."
        )
    chart = histogram(
        histograms, canvas, x="requests in the queue", y="share of time, %", log=False, marks=False, counts=True
    )
    return Figure("Time at each queue depth", caption, chart.properties(width=canvas.width, height=180))


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
