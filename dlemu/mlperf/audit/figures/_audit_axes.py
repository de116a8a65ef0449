"""Colours and labels that the figures of an audit share."""

from __future__ import annotations

from collections.abc import Iterable

import altair as alt

from dlemu.mlperf.audit.page import Audit
from dlemu.report.figure_base import AMBER, BLUE, GREEN, GREY, PINK, PURPLE, RED, TEAL, Canvas, colours, legend

_LETTER_PIXELS = 5.3
_KINDS = (BLUE, AMBER, GREEN, PURPLE, RED, TEAL, PINK, GREY)


def kind_colour(audit: Audit, canvas: Canvas) -> alt.Color:
    """Give each workload with its accelerator a colour."""
    names = sorted({run.kind for run in audit.runs})
    shown = legend(canvas, 1 if canvas.narrow else 3) if len(names) > 1 else None
    return alt.Color("kind:N", scale=colours(names, _KINDS), legend=shown)


def label_axis(canvas: Canvas, names: Iterable[str], most: int = 0) -> alt.Axis:
    """Return an axis of folders' names, without the words that all have, and long ones without their middle.

    `most` is how many letters are shown; 0 for as many as leave room for a picture.
    """
    most = most or (22 if canvas.narrow else 52)
    ahead = 6 if canvas.narrow else 22
    name = "replace(datum.label, /(^|\\/)(results|training|runs?)(?=\\/|$)/g, '')"
    short = f"slice({name}, 0, {ahead}) + '\u2026' + slice({name}, -{most - ahead - 1})"
    return alt.Axis(
        labelExpr=f"length({name}) > {most} ? {short} : {name}",
        labelLimit=0,
        labelFontSize=9,
        labelOverlap=False,
        minExtent=_LETTER_PIXELS * min(most, max(map(len, names))),  # fonts differ: leave room for the widest
        grid=True,
    )


def plot_width(canvas: Canvas) -> int:
    """Return the pixels beside labels of that length."""
    return 160 if canvas.narrow else 400
