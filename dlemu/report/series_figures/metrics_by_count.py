"""What drives are compared by: training time, samples/s, and the devices' mean and largest throughput and latency."""

from __future__ import annotations

import altair as alt

from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.series import RunSeries
from dlemu.report.series_figures._lines import Value, lines, rows

ORDER = 30
_PANELS: dict[str, Value] = {
    "total training time, s": lambda point: point.total_seconds,
    "samples/s": lambda point: point.samples_per_second,
    "mean device MB/s": lambda point: point.device_mb_per_second,
    "largest device MB/s": lambda point: point.max_device_mb_per_second,
    "mean device read latency, ms": lambda point: point.mean_device_read_latency_ms,
}


def draw(series: RunSeries, canvas: Canvas) -> Figure | None:
    panels = [panel for title, value in _PANELS.items() if (panel := _panel(series, title, value, canvas))]
    if not panels:
        return None
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2)
    says = "Of whole runs. Device figures are those of the devices behind the dataset, by the kernel's counters."
    return Figure("Time, samples and devices", says, chart)


def _panel(series: RunSeries, title: str, value: Value, canvas: Canvas) -> alt.LayerChart | None:
    marks = rows(series, value)
    if not marks:
        return None
    y = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    return lines(series, marks, y, canvas).properties(width=width, height=170)
