"""Throughput, and the CPU, pressure, memory and power of the busiest host, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import altair as alt

from dlemu.jobs.training.figures._timeline import epoch_marks, hosts_by_load, line, throughput_panel, x_axis
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    TEAL,
    Canvas,
    Figure,
    Row,
    colours,
    data,
    legend,
    rounded,
)

ORDER = 70


@dataclass(frozen=True)
class _Panel:
    probe: str
    axis: str
    names: dict[str, str]
    """Metric -> its name in the legend."""
    colours: Sequence[str]
    stacked: bool = False
    top: float | None = None
    """Upper end of the axis; None fits it to the values."""
    factor: float = 1.0
    """Converts the metric to the unit of the axis."""


_PANELS = (
    _Panel(
        probe="cpu",
        axis="CPU, %",
        names={
            "user_percent": "user",
            "system_percent": "system",
            "iowait_percent": "waiting for I/O",
            "steal_percent": "stolen",
        },
        colours=(BLUE, PURPLE, AMBER, RED),
        stacked=True,
        top=100.0,
    ),
    _Panel(
        probe="pressure",
        axis="stalled, %",
        names={"cpu_some_percent": "for CPU", "io_some_percent": "for IO", "memory_some_percent": "for memory"},
        colours=(BLUE, AMBER, RED),
    ),
    _Panel(
        probe="memory",
        axis="memory, GB",
        names={"used_mb": "used", "page_cache_mb": "page cache"},
        colours=(PURPLE, TEAL),
        factor=1e-3,
    ),
    _Panel(probe="power", axis="power, W", names={"watts": "watts"}, colours=(RED, AMBER, GREEN, BLUE, GREY)),
)


def draw(run: Run, canvas: Canvas) -> Figure | None:
    hosts = hosts_by_load(run)
    if not hosts:
        return None
    filled = [(panel, rows) for panel in _PANELS if (rows := list(_rows(run, panel, hosts[0], canvas)))]
    panels = [_panel(run, panel, rows, canvas, last=panel is filled[-1][0]) for panel, rows in filled]
    chart = alt.vconcat(throughput_panel(run, canvas), *panels, spacing=10).resolve_scale(color="independent")
    caption = (
        "CPU: all cores together; the rest up to 100 % is idle. Stalled: share of the time in which some task waited "
        "for CPU, I/O or memory (the kernel's pressure stall information)."
    )
    if len(hosts) > 1:
        caption += (
            f" This is {hosts[0]}, whose cores were the busiest of {len(hosts)} hosts; throughput is that of all ranks."
        )
    return Figure("The host during the run", caption, chart)


def _rows(run: Run, panel: _Panel, host: str, canvas: Canvas) -> Iterator[Row]:
    order = list(panel.names)
    for series in run.series(panel.probe, *panel.names):
        if series.host != host:
            continue
        name = panel.names[series.metric] if len(order) > 1 else series.source or panel.names[series.metric]
        seconds, values = line(series, canvas)
        for second, value in zip(rounded(seconds), rounded(values * panel.factor, 4), strict=True):
            yield {"what": name, "at": second, "value": value, "order": order.index(series.metric)}


def _panel(run: Run, panel: _Panel, rows: list[Row], canvas: Canvas, *, last: bool) -> alt.LayerChart:
    names = list(dict.fromkeys(row["what"] for row in sorted(rows, key=lambda row: row["order"])))
    scale = alt.Scale(domain=[0, panel.top]) if panel.top else alt.Scale(domainMin=0)
    y = alt.Y("value:Q", title=panel.axis, scale=scale, stack="zero" if panel.stacked else None)
    colour = alt.Color("what:N", scale=colours(names, panel.colours), legend=legend(canvas))
    base = alt.Chart(data(rows))
    areas = partial(base.mark_area, opacity=0.85)
    mark = (areas if panel.stacked else partial(base.mark_line, strokeWidth=1.3))(clip=True, interpolate="step-before")
    encoded = mark.encode(x=x_axis(run, named=last), y=y, color=colour, order=alt.Order("order:Q"))
    return alt.layer(epoch_marks(run, named=False), encoded).properties(width=canvas.width, height=90)
