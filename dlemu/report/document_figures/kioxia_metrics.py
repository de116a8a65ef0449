"""KIOXIA's six figures: a bar for each drive at each count of accelerators."""

from __future__ import annotations

from dlemu.report.document_figures._grouped import bars, grid
from dlemu.report.document_report import METRICS, OpenedDocument
from dlemu.report.figures.figure_base import Canvas, Figure

ORDER = 10


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    if opened.document != "kioxia":
        return None
    panels = []
    for title, value in METRICS.items():
        rows = [
            {"at": figures.ranks, "drive": drive, "value": number}
            for drive, figures in opened.sweep_figures()
            if (number := value(figures)) is not None
        ]
        if rows:
            panels.append(bars(rows, "accelerators", title, opened.drives, canvas))
    if not panels:
        return None
    return Figure("Six metrics by accelerators", "Of whole runs; a bar for each storage.", grid(panels, canvas))
