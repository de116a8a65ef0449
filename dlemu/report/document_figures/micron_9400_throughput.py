"""Micron's figures 1 and 2: what the device gave over time, in MiB/s, with 1 accelerator and with 15."""

from __future__ import annotations

import altair as alt

from dlemu.report.document_report import OpenedDocument
from dlemu.report.figures._timeline import binned, epoch_marks, x_axis
from dlemu.report.figures.figure_base import BLUE, Canvas, Figure, data
from dlemu.results.run import Run

ORDER = 20
MIB_PER_MB = 1e6 / 2**20


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    runs = [(name.removeprefix("ranks-"), opened.run(name)) for name in ("ranks-1", "ranks-15")]
    panels = [panel for count, run in runs if run is not None and (panel := _panel(count, run, canvas))]
    if not panels:
        return None
    says = "What the devices behind the dataset read, every tenth of a second. At an epoch's start queues are filled."
    return Figure("Throughput over time", says, alt.vconcat(*panels))


def _panel(count: str, run: Run, canvas: Canvas) -> alt.LayerChart | None:
    devices = run.device_series("block", "read_mb_per_second")
    if not devices:
        return None
    rows = [{"at": at, "mib": rate * MIB_PER_MB} for at, rate in binned(devices, run, canvas)]
    title = f"MiB/s, {count} accelerator{'s' * (count != '1')}"
    line = alt.Chart(data(rows)).mark_line(color=BLUE, interpolate="step-before", strokeWidth=1.3)
    encoded = line.encode(x=x_axis(run), y=alt.Y("mib:Q", title=title, scale=alt.Scale(domainMin=0)))
    return alt.layer(epoch_marks(run), encoded).properties(width=canvas.width, height=130)
