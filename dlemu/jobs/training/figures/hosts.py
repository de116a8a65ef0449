"""All hosts on one time axis, one line each, to find one that is slower, busier or shorter of memory than others."""

from __future__ import annotations

from dataclasses import dataclass

import altair as alt

from dlemu.jobs.training.figures._timeline import binned, epoch_marks, hosts_by_load, throughput_panel, x_axis
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import COLOURS, Canvas, Figure, Row, colours, data, legend

ORDER = 69
_MAX_HOSTS = len(COLOURS)


@dataclass(frozen=True)
class _Panel:
    axis: str
    probe: str
    metrics: tuple[str, ...]
    """Metrics that are added up, over all sources (meters) of the host."""
    factor: float = 1.0


_PANELS = (
    _Panel("CPU busy, %", "cpu", ("user_percent", "system_percent", "steal_percent")),
    _Panel("stalled on I/O, %", "pressure", ("io_some_percent",)),
    _Panel("memory used, GB", "memory", ("used_mb",), 1e-3),
    _Panel("power, W", "power", ("watts",)),
)


def draw(run: Run, canvas: Canvas) -> Figure | None:
    hosts = hosts_by_load(run)
    if len(hosts) < 2:
        return None
    shown = hosts[:_MAX_HOSTS]
    filled = [(panel, rows) for panel in _PANELS if (rows := _rows(run, panel, shown, canvas))]
    panels = [_panel(run, panel, rows, shown, canvas, last=panel is filled[-1][0]) for panel, rows in filled]
    chart = alt.vconcat(throughput_panel(run, canvas), *panels, spacing=10).resolve_scale(color="independent")
    caption = (
        "Throughput is that of all ranks. Below it, one line per host, on the host's own clock from its own first step."
    )
    if len(hosts) > len(shown):
        caption += f" Only the {len(shown)} of {len(hosts)} hosts with the busiest cores are drawn."
    return Figure("The hosts side by side", caption, chart)


def _rows(run: Run, panel: _Panel, hosts: list[str], canvas: Canvas) -> list[Row]:
    rows = []
    for host in hosts:
        sources = [series for series in run.series(panel.probe, *panel.metrics) if series.host == host]
        points = binned(sources, run, canvas)
        rows += [{"what": host, "at": at, "value": value * panel.factor} for at, value in points]
    return rows


def _panel(run: Run, panel: _Panel, rows: list[Row], hosts: list[str], canvas: Canvas, *, last: bool) -> alt.LayerChart:
    y = alt.Y("value:Q", title=panel.axis, scale=alt.Scale(domainMin=0))
    first = panel is _PANELS[0]
    colour = alt.Color("what:N", scale=colours(hosts), legend=legend(canvas) if first else None)
    lines = alt.Chart(data(rows)).mark_line(interpolate="step-before", strokeWidth=1.3, clip=True)
    encoded = lines.encode(x=x_axis(run, named=last), y=y, color=colour)
    return alt.layer(epoch_marks(run, named=False), encoded).properties(width=canvas.width, height=90)
