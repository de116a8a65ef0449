"""Micron's figures of GB/s and of GB/s per watt by workers, for each transfer size."""

from __future__ import annotations

import altair as alt

from dlemu.report.document_figures._grouped import grid, lines
from dlemu.report.document_report import OpenedDocument, watts_of
from dlemu.report.figures.figure_base import Canvas, Figure, Row

ORDER = 60


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    if opened.document != "micron-6550":
        return None
    cells = [(drive, cell) for drive, probed in opened.probes() for cell in probed.cells]
    panels: list[alt.Chart | alt.LayerChart] = []
    for size in sorted({cell.size_bytes for _, cell in cells}):
        rates: list[Row] = []
        efficiencies: list[Row] = []
        for drive, cell in cells:
            if cell.size_bytes == size:
                rate, watts = cell.mb_per_second / 1000, watts_of(opened, drive, cell)
                rates.append({"at": cell.in_flight, "drive": drive, "value": rate})
                if watts:
                    efficiencies.append({"at": cell.in_flight, "drive": drive, "value": rate / watts})
        for rows, unit in ((rates, "GB/s"), (efficiencies, "GB/s per watt")):
            if rows:
                panels.append(lines(rows, "workers", f"{unit}, {size >> 10} KiB", opened.drives, canvas))
    if not panels:
        return None
    says = "Random reads past the page cache into the host's memory, one request of each worker at a time."
    if not any(watts_of(opened, drive, cell) for drive, cell in cells):
        says += " No meter was found: --watts gives GB/s per watt."
    return Figure("Transfer sizes by workers", says, grid(panels, canvas))
