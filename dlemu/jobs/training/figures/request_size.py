"""Histogram of the sizes of the requests that reached the device, after the kernel split and merged them."""

from __future__ import annotations

from dlemu.jobs.training.figures._bins import OPERATIONS, histogram, traced_bins
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import Canvas, Figure

ORDER = 61


def draw(run: Run, canvas: Canvas) -> Figure | None:
    histograms = {name: bins for name in OPERATIONS if (bins := traced_bins(run, "request_kib", name))}
    if not histograms:
        return None
    chart = histogram(histograms, canvas, x="request, KiB (log)", y="share of requests, %", log=True, marks=True)
    caption = (
        "Sizes as the device saw them (block trace): requests above the device's limit are split, adjacent ones merged."
    )
    return Figure("Request sizes", caption, chart.properties(width=canvas.width, height=180))
