"""Figure: rate of writing, and CPU use, against the setting that varies."""

from __future__ import annotations

from dlemu.contrib.pack.figures._pack_axes import panels
from dlemu.contrib.pack.page import OpenedPack
from dlemu.report.figure_base import Canvas, Figure

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
    caption = "Packed bytes (1e6) on the device, and the CPU time of the processes."
    return Figure(f"Writing rate and CPU against {opened.axis}", caption, chart)
