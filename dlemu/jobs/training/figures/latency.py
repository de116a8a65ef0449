"""Histogram of the device's latency per request, with percentiles; only a block trace shows it."""

from __future__ import annotations

from dlemu.jobs.training.figures._bins import OPERATIONS, histogram, traced_bins
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import Canvas, Figure

ORDER = 60


def draw(run: Run, canvas: Canvas) -> Figure | None:
    histograms = {name: bins for name in OPERATIONS if (bins := traced_bins(run, "latency_us", name))}
    if not histograms:
        return None
    chart = histogram(histograms, canvas, x="latency, us (log)", y="share of requests, %", log=True, marks=True)
    caption = (
        "From issuing a request to its completion, as the device's driver sees it (block trace). Percentiles are of "
        "reads."
    )
    return Figure("Device latency", caption, chart.properties(width=canvas.width, height=180))
