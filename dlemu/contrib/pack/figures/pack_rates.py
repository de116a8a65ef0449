"""Figure: rate of reading images, and duration, against the setting that varies."""

from __future__ import annotations

from dlemu.contrib.pack.figures._pack_axes import panels
from dlemu.contrib.pack.page import OpenedPack
from dlemu.report.figure_base import Canvas, Figure

ORDER = 10


def draw(opened: OpenedPack, canvas: Canvas) -> Figure | None:
    chart = panels(
        opened,
        {"MB/s read": lambda figures: figures.read_mb_per_second, "time, s": lambda figures: figures.seconds},
        canvas,
    )
    if chart is None:
        return None
    caption = "Bytes of the images' files (1e6) by the time until the last packed byte was on the device."
    return Figure(f"Reading rate and time against {opened.axis}", caption, chart)
