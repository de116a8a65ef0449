"""AMAX: the time of the first epoch, and random reads, a bar for each storage."""

from __future__ import annotations

from dlemu.report.document_figures._grouped import bars, grid
from dlemu.report.document_report import OpenedDocument
from dlemu.report.figures.figure_base import Canvas, Figure

ORDER = 40


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    if opened.document != "amax":
        return None
    epochs = [
        {"at": figures.ranks, "drive": drive, "value": figures.total_seconds}
        for drive, figures in opened.sweep_figures()
        if figures.total_seconds is not None
    ]
    reads = [
        {"at": "128 KiB", "drive": drive, "value": probed.best.mb_per_second}
        for drive, probed in opened.probes()
        if probed.best is not None
    ]
    panels = [
        bars(rows, across, title, opened.drives, canvas)
        for rows, across, title in (
            (epochs, "accelerators", "first epoch, s"),
            (reads, "random reads at depth 32", "MB/s"),
        )
        if rows
    ]
    if not panels:
        return None
    says = "The first epoch began with an empty page cache. Where it does not follow the reads, another limit holds."
    return Figure("First epoch beside random reads", says, grid(panels, canvas))
