"""How much more or less A is than B, metric by metric, with the uncertainty of the difference."""

from __future__ import annotations

from functools import partial

import altair as alt

from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.report.figure_base import BLUE, GREY, INK, MUTED, PADDING, Canvas, Figure, Row, data
from dlemu.report.panels import grid
from dlemu.results.compared import Difference
from dlemu.results.figures import Value
from dlemu.studies.answers import RunPair
from dlemu.studies.compare.figures._sides import over_pairs
from dlemu.studies.compare.page import OpenedComparison

ORDER = 30


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    runs = comparison.answer.runs
    chart = _by_metric(runs[0], comparison.catalogue, canvas) if len(runs) == 1 else _over_counts(comparison, canvas)
    if chart is None:
        return None
    caption = (
        f"100 x (A / B - 1) %: below 0 A has less. Lines are 95 % intervals over {comparison.catalogue.repetition}s; "
        "where one reaches 0, no difference is shown."
    )
    return Figure("A relative to B", caption, chart)


def _by_metric(pair: RunPair, catalogue: Catalogue, canvas: Canvas) -> alt.LayerChart | None:
    known = ((metric, pair.metrics.get(metric.name)) for metric in catalogue)
    rows = [row for metric, difference in known if difference and (row := _row(metric, difference))]
    if not rows:
        return None
    x = alt.X("percent:Q", title="A to B, %", scale=alt.Scale(zero=True, padding=34), axis=alt.Axis(tickCount=6))
    order = [row["metric"] for row in rows]
    y = alt.Y(
        "metric:N",
        sort=order,
        title=None,
        axis=alt.Axis(labelLimit=190, labelFontSize=9 if canvas.narrow else 11, ticks=False, domain=False),
    )
    hue = alt.ColorValue(GREY, condition={"test": "datum.distinct", "value": BLUE})
    base = alt.Chart(data(rows)).encode(y=y)
    whiskers = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.6)
    layers = (
        alt.Chart(data([{"zero": 0}])).mark_rule(color=MUTED, strokeWidth=1.2).encode(x=alt.X("zero:Q")),
        whiskers.encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), color=hue),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, color=hue),
        base.mark_text(baseline="bottom", dy=-5, color=INK, fontSize=11).encode(x=x, text=alt.Text("text:N")),
    )
    return alt.layer(*layers).properties(width=canvas.width - 150, height=34 * len(rows), padding=PADDING)


def _row(metric: Metric, difference: Difference) -> Row | None:
    percent, half = difference.difference_percent, difference.half_width_percent or 0.0
    if percent is None:
        return None
    point = {"metric": metric.title, "percent": percent, "text": f"{percent:+.1f} %"}
    return point | {"low": percent - half, "high": percent + half, "distinct": difference.distinct is not False}


def _over_counts(comparison: OpenedComparison, canvas: Canvas) -> alt.ConcatChart | None:
    panels = [
        partial(
            over_pairs,
            comparison=comparison,
            value=partial(_value, metric.name),
            title=f"{metric.title}, %",
            canvas=canvas,
        )
        for metric in comparison.catalogue.drawn
    ]
    return grid(panels, canvas, 1 if canvas.narrow else 2)


def _value(name: str, pair: RunPair) -> Value | None:
    difference = pair.metrics.get(name)
    if difference is None or difference.difference_percent is None:
        return None
    return Value(difference.difference_percent, difference.half_width_percent)
