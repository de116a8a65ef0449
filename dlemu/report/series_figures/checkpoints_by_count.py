"""How fast checkpoints were written and read: where a storage or a host is full, more ranks or writers add nothing."""

from __future__ import annotations

import altair as alt

from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.series import ACCELERATORS, RunSeries
from dlemu.report.series_figures._lines import bars, lines, rows
from dlemu.report.units import at

ORDER = 40
_PANELS = {
    "write_slowest_gib_per_second": "written, GiB/s",
    "read_slowest_gib_per_second": "read, GiB/s",
    "write_slowest_seconds": "one checkpoint written, s",
    "read_slowest_seconds": "one checkpoint read, s",
}


def draw(series: RunSeries, canvas: Canvas) -> Figure | None:
    panels = [panel for name, title in _PANELS.items() if (panel := _panel(series, name, title, canvas))]
    if not panels:
        return None
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2)
    says = "By the slowest rank. Upright lines are 95 % intervals over the checkpoints of a point."
    axis = "ranks" if series.axis == ACCELERATORS else series.axis
    return Figure(f"Checkpoints against {axis}", says, chart)


def _panel(series: RunSeries, metric: str, title: str, canvas: Canvas) -> alt.LayerChart | None:
    value = f"checkpoints.metrics.{metric}"
    marks = rows(series, lambda point: at(point, f"{value}.mean"), lambda point: at(point, f"{value}.half_width"))
    if not marks:
        return None
    scale = alt.Scale(domainMin=0, clamp=True)
    y = alt.Y("value:Q", title=title, scale=scale)
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    layers = bars(series, marks, title, scale, canvas), lines(series, marks, y, canvas)
    return alt.layer(*layers).properties(width=width, height=170)
