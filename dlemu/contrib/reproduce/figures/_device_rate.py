"""What a training run's devices read over time, as a panel of a document."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.training.figures.over_time import binned, epoch_marks, x_axis
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import BLUE, Canvas, data


def device_rate(run: Run, title: str, per_mb: float, canvas: Canvas) -> alt.LayerChart | None:
    """Draw the read rate of the dataset's devices over time, in a unit of which 1 MB (1e6 bytes) has `per_mb`."""
    devices = run.device_series("block", "read_mb_per_second")
    if not devices:
        return None
    rows = [{"at": at, "rate": rate * per_mb} for at, rate in binned(devices, run, canvas)]
    line = alt.Chart(data(rows)).mark_line(color=BLUE, interpolate="step-before", strokeWidth=1.3)
    encoded = line.encode(x=x_axis(run), y=alt.Y("rate:Q", title=title, scale=alt.Scale(domainMin=0)))
    return alt.layer(epoch_marks(run), encoded).properties(width=canvas.width, height=130)
