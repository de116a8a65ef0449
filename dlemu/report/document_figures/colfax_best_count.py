"""Colfax's table 3 as a figure: MB/s and seconds by processes around the best count."""

from __future__ import annotations

from dataclasses import replace

from dlemu.report.document_report import OpenedDocument
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.pack_figures import pack_rates

ORDER = 31


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    packed = opened.packing("table-3")
    figure = pack_rates.draw(packed, canvas) if packed is not None else None
    return (
        None
        if figure is None
        else replace(figure, title="Table 3: MB/s and seconds around the best count of processes")
    )
