"""Colours and axes that the figures of an audit share."""

from __future__ import annotations

from collections.abc import Iterable

import altair as alt

from dlemu.contrib.mlperf.audit.page import Audit
from dlemu.report.figure_base import AMBER, BLUE, GREEN, GREY, PINK, PURPLE, RED, TEAL, Canvas, colours, legend

_LETTER_PIXELS = 5.3  # room for a letter at font size 9
_KINDS = (BLUE, AMBER, GREEN, PURPLE, RED, TEAL, PINK, GREY)


def kind_colour(audit: Audit, canvas: Canvas) -> alt.Color:
    """Return the colours of kinds of runs (workload and accelerator)."""
    names = sorted({run.kind for run in audit.runs})
    shown = legend(canvas, 1 if canvas.narrow else 3) if len(names) > 1 else None
    return alt.Color("kind:N", scale=colours(names, _KINDS), legend=shown)


def label_axis(canvas: Canvas, names: Iterable[str], max_letters: int = 0) -> alt.Axis:
    """Return an axis of folder names, without frequent words such as "results", and long names without their middle.

    `max_letters` is 0 for as many as leave room for the figure itself.
    """
    max_letters = max_letters or (22 if canvas.narrow else 52)
    head_letters = 6 if canvas.narrow else 22
    name = "replace(datum.label, /(^|\\/)(results|training|runs?)(?=\\/|$)/g, '')"
    short = f"slice({name}, 0, {head_letters}) + '\u2026' + slice({name}, -{max_letters - head_letters - 1})"
    return alt.Axis(
        labelExpr=f"length({name}) > {max_letters} ? {short} : {name}",
        labelLimit=0,
        labelFontSize=9,
        labelOverlap=False,
        minExtent=_LETTER_PIXELS * min(max_letters, max(map(len, names))),  # fonts differ: leave room for the widest
        grid=True,
    )


def plot_width(canvas: Canvas) -> int:
    """Return the width in pixels of a figure beside labels of the default length."""
    return 160 if canvas.narrow else 400
