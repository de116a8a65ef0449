"""What was written, and what the cores did for it."""

from __future__ import annotations

from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.pack_figures._pack_axes import panels
from dlemu.report.pack_report import OpenedPack

ORDER = 20


def draw(opened: OpenedPack, canvas: Canvas) -> Figure | None:
    chart = panels(
        opened,
        {
            "MB/s written": lambda figures: figures.write_mb_per_second,
            "CPU, % of all cores": lambda figures: figures.cpu_percent,
        },
        canvas,
    )
    if chart is None:
        return None
    says = "Packed bytes (1e6) on the device, and the CPU time of the processes."
    return Figure(f"Writing rate and CPU against {opened.axis}", says, chart)
