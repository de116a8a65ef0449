"""What the figures of hosts share: which hosts there are, which is the busiest, and the throughput above the others."""

from __future__ import annotations

import altair as alt

from dlemu.report.figures._time_axis import epoch_marks, x_axis
from dlemu.report.figures.figure_base import AMBER, BLUE, Canvas, colours, data, legend
from dlemu.report.figures.throughput import APPLICATION, DEVICE, throughput_rows
from dlemu.report.result import Run

_PROBES = ("cpu", "pressure", "memory", "power")
_BUSY = ("user_percent", "system_percent", "steal_percent")


def hosts_of(run: Run) -> list[str]:
    """Return the hosts that something is known of beside their devices, by name."""
    return sorted({one.host for probe in _PROBES for one in run.readings(probe)})


def busiest(run: Run, hosts: list[str]) -> list[str]:
    """Return hosts, those with the busiest cores first."""
    busy = dict.fromkeys(hosts, 0.0)
    for one in run.readings("cpu", *_BUSY):
        if len(one.values):
            busy[one.host] += float(one.values.mean())
    return sorted(hosts, key=lambda host: (-busy[host], host))


def throughput_panel(run: Run, canvas: Canvas) -> alt.LayerChart:
    """Draw what the loaders of all ranks and the devices read, without a name on the time axis."""
    y = alt.Y("mb:Q", title="MB/s", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours((APPLICATION, DEVICE), (BLUE, AMBER)), legend=legend(canvas, 2))
    lines = alt.Chart(data(throughput_rows(run, canvas))).mark_line(interpolate="step-before", strokeWidth=1.3)
    encoded = lines.encode(x=x_axis(run, named=False), y=y, color=colour)
    return alt.layer(epoch_marks(run), encoded).properties(width=canvas.width, height=90)
