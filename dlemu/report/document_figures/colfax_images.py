"""Colfax's table 4 as a figure: MB/s and seconds by images."""

from __future__ import annotations

from dataclasses import replace

from dlemu.report.document_report import OpenedDocument
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.pack_figures import pack_rates

ORDER = 41


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    packed = opened.packing("table-4")
    figure = pack_rates.draw(packed, canvas) if packed is not None else None
    return None if figure is None else replace(figure, title="Table 4: MB/s and seconds by images")
